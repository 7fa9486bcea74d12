"""Storage in a folder of a local or shared file system, by the standard library alone."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from metaquorum.spark.loader.errors import OutputError
from metaquorum.wire.primitives.types import Buffer

TEMPORARY_SUFFIX: Final = ".tmp"
_RESTORE: Final = "restore it from a backup, or load into another folder"
_WHAT_TO_DO: Final[Mapping[int, str]] = {
    errno.ENOSPC: "free some space, and run the load again: it continues where it stopped",
    errno.EDQUOT: "raise the quota, and run the load again: it continues where it stopped",
    errno.EACCES: "choose an output that you may write to",
    errno.EPERM: "choose an output that you may write to",
    errno.EROFS: "choose an output that you may write to",
    errno.ENOENT: "choose an output where folders can be created",
    errno.ENOTDIR: "choose an output that is a folder",
    errno.EIO: "the disk or its server fails: see the system log",
}
# Errors of link(2) on a file system without hard links.
_NO_LINKS: Final = frozenset((errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS))


class LocalOutputFile:
    def __init__(self, path: str) -> None:
        self._path = path
        with _vanishing(path), _explained(path):
            self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by `close`

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data).cast("B")
        with _explained(self._path):
            done = 0
            while done < len(view):
                done += self._file.write(view[done:])
        return len(view)

    def close(self) -> None:
        with _explained(self._path), self._file:
            os.fsync(self._file.fileno())
        with _vanishing(self._path):
            _sync_folder(os.path.dirname(self._path))

    def discard(self) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            os.unlink(self._path)


class LocalStorage:
    is_local = True

    def __init__(self, path: str) -> None:
        if not path:
            raise OutputError("the output is empty; give a folder")
        self.url = os.path.abspath(os.path.expanduser(path))

    def local_path(self, path: str) -> str:
        return os.path.join(self.url, *path.split("/")) if path else self.url

    def create(self, path: str, data: bytes) -> None:
        target = self.local_path(path)
        folder, name = os.path.split(target)
        self._make_folder(folder)
        # The link is created when the file is complete, so every visible name is a complete file.
        temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
        try:
            file = LocalOutputFile(temporary)
            try:
                file.write(data)
            finally:
                file.close()
            try:
                with _vanishing(target):
                    os.link(temporary, target)
            except (FileExistsError, OutputError):
                raise
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise OutputError(
                        f"the file system of {self.url} has no hard links, so two loads at once "
                        "could both commit; choose an output on another file system"
                    ) from None
                raise _output_error(target, error) from None
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        with _vanishing(target):
            _sync_folder(folder)

    def read(self, path: str, max_bytes: int) -> bytes:
        target = self.local_path(path)
        with _explained(target), open(target, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OutputError(f"{target} is not a file: {_RESTORE}")
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise OutputError(f"{target} has more than {max_bytes} bytes: {_RESTORE}")
        return data

    def list_files(self, folder: str) -> Mapping[str, int]:
        found: dict[str, int] = {}
        top = self.local_path(folder)
        with _explained(top):
            for place, _, names in os.walk(top, onerror=_raise_unless_missing):
                for name in names:
                    if name.endswith(TEMPORARY_SUFFIX):
                        continue
                    full = os.path.join(place, name)
                    with suppress(FileNotFoundError):
                        found[os.path.relpath(full, self.url).replace(os.sep, "/")] = (
                            os.path.getsize(full)
                        )
        return found

    def names(self) -> list[str]:
        with _explained(self.url):
            try:
                return sorted(os.listdir(self.url))
            except FileNotFoundError:
                return []

    def open_output(self, path: str) -> LocalOutputFile:
        target = self.local_path(path)
        self._make_folder(os.path.dirname(target))
        return LocalOutputFile(target)

    def make_durable(self, folder: str) -> None:
        with suppress(FileNotFoundError):
            _sync_folder(self.local_path(folder))

    def publish(self, staged: str, path: str) -> None:
        source, target = self.local_path(staged), self.local_path(path)
        folder = os.path.dirname(target)
        self._make_folder(folder)
        with _explained(target):
            try:
                os.replace(source, target)
            except FileNotFoundError:
                if not os.path.exists(target):
                    raise OutputError(
                        f"{source} is missing, although its load is committed; restore it from a "
                        "backup, or load into another folder"
                    ) from None
        _sync_folder(folder)

    def delete(self, path: str) -> None:
        target = self.local_path(path)
        with _explained(target), suppress(FileNotFoundError):
            os.unlink(target)

    def delete_folder(self, folder: str) -> None:
        target = self.local_path(folder)
        with _explained(target), suppress(FileNotFoundError):
            shutil.rmtree(target)
        with suppress(OSError):  # a parent folder that is not empty stays
            os.rmdir(os.path.dirname(target))

    def overwrite(self, path: str, data: bytes) -> None:
        target = self.local_path(path)
        self._make_folder(os.path.dirname(target))
        with _explained(target):
            temporary = f"{target}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
            with open(temporary, "xb") as file:
                file.write(data)
            os.replace(temporary, target)

    def sweep_temporaries(self, folder: str) -> None:
        """Delete the temporary files of processes that died while they created files."""
        top = self.local_path(folder)
        for place, _, names in os.walk(top):
            for name in names:
                if name.endswith(TEMPORARY_SUFFIX):
                    with suppress(OSError):
                        os.unlink(os.path.join(place, name))

    def _make_folder(self, folder: str) -> None:
        """Create the folder, and sync the parent of each new part of its path."""
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            above = os.path.dirname(folder)
            if above == folder:
                break
            folder = above
        for each in reversed(missing):
            with _explained(each):
                try:
                    os.makedirs(each, exist_ok=True)
                except (
                    FileNotFoundError
                ) as error:  # on a file system where folders cannot be created
                    raise _output_error(each, error) from None
            _sync_folder(os.path.dirname(each))


def _open_without_waiting(path: str, flags: int) -> int:
    """Open the path, which may be a pipe without a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _sync_folder(folder: str) -> None:
    with _explained(folder):
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (
                errno.EINVAL,
                errno.ENOTSUP,
            ):  # fsync of folders is not supported
                raise
        finally:
            os.close(descriptor)


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Convert OSError to OutputError, except for existing or missing files."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise _output_error(path, error) from None


@contextmanager
def _vanishing(path: str) -> Iterator[None]:
    """Convert FileNotFoundError to OutputError: only another process can have deleted the file."""
    try:
        yield
    except FileNotFoundError:
        raise OutputError(
            f"{path} has disappeared: another driver has finished or discarded this load, or the "
            "folder was deleted; run the load again"
        ) from None


def _output_error(path: str, error: OSError) -> OutputError:
    todo = _WHAT_TO_DO.get(error.errno or 0)
    return OutputError(f"{path}: {error.strerror or error}{'; ' + todo if todo else ''}")
