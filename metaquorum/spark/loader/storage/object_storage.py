"""Storage in a prefix of a bucket, by fsspec's file systems that create objects exclusively."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from metaquorum.spark.loader.errors import OutputError
from metaquorum.wire.primitives.types import Buffer


class ObjectOutputFile:
    """A new object, uploaded in parts; it exists after `close`."""

    def __init__(self, url: str, file: Any) -> None:
        self._url = url
        self._file = file

    def write(self, data: Buffer, /) -> int:
        with _explained(self._url):
            self._file.write(memoryview(data).cast("B"))
        return len(memoryview(data).cast("B"))

    def close(self) -> None:
        with _explained(self._url), _without_bucket(self._url):
            self._file.close()

    def discard(self) -> None:
        # `close` would create an object of the parts uploaded so far.
        self._file.closed = True
        with suppress(Exception):  # uploaded parts expire by the bucket's rules
            self._file.discard()


class ObjectStorage:
    is_local = False

    def __init__(self, url: str, distribution: str, options: Mapping[str, Any]) -> None:
        self.url = url.rstrip("/")
        try:
            import fsspec.core
        except ImportError:
            raise OutputError(
                f"{url} needs the Python packages fsspec and {distribution}; "
                f"run: pip install {distribution}"
            ) from None
        try:
            with _explained(self.url):
                self._files, path = fsspec.core.url_to_fs(self.url, **options)
        except (ImportError, TypeError, ValueError) as error:
            raise OutputError(f"{url} cannot be opened by {distribution}: {error}") from None
        self._root = str(path).rstrip("/")

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def create(self, path: str, data: bytes) -> None:
        with _explained(f"{self.url}/{path}"), _without_bucket(self.url):
            self._files.pipe_file(self._full(path), data, mode="create")

    def read(self, path: str, max_bytes: int) -> bytes:
        with _explained(f"{self.url}/{path}"):
            data: bytes = self._files.cat_file(self._full(path), start=0, end=max_bytes + 1)
        if len(data) > max_bytes:
            raise OutputError(
                f"{self.url}/{path} has more than {max_bytes} bytes: restore it from a backup, or "
                "load into another folder"
            )
        return data

    def list_files(self, folder: str) -> Mapping[str, int]:
        with _explained(f"{self.url}/{folder}"):
            self._files.invalidate_cache()
            try:
                found = self._files.find(self._full(folder), detail=True)
            except FileNotFoundError:
                return {}
        start = len(self._root) + 1
        return {name[start:]: int(facts["size"]) for name, facts in found.items()}

    def names(self) -> list[str]:
        with _explained(self.url):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._root, detail=False)
            except FileNotFoundError:
                return []
        names = {str(name).rstrip("/").rpartition("/")[2] for name in found}
        return sorted(names - {self._root.rpartition("/")[2], ""})

    def open_output(self, path: str) -> ObjectOutputFile:
        full = f"{self.url}/{path}"
        with _explained(full):
            return ObjectOutputFile(full, self._files.open(self._full(path), "wb"))

    def make_durable(self, folder: str) -> None:
        """Do nothing: every visible object of an object store is durable."""

    def publish(self, staged: str, path: str) -> None:
        """Copy the object on the server, because object stores cannot rename."""
        with _explained(f"{self.url}/{path}"):
            try:
                self._files.cp_file(self._full(staged), self._full(path))
            except FileNotFoundError:
                self._files.invalidate_cache()
                if not self._files.exists(self._full(path)):
                    raise OutputError(
                        f"{self.url}/{staged} is missing, although its load is committed; restore "
                        "it from a backup, or load into another folder"
                    ) from None

    def delete(self, path: str) -> None:
        with _explained(f"{self.url}/{path}"), suppress(FileNotFoundError):
            self._files.rm_file(self._full(path))

    def delete_folder(self, folder: str) -> None:
        for path in self.list_files(folder):
            self.delete(path)

    def overwrite(self, path: str, data: bytes) -> None:
        with _explained(f"{self.url}/{path}"), _without_bucket(self.url):
            self._files.pipe_file(self._full(path), data)


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Convert the store's errors to OutputError, except for existing or missing objects."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, OutputError):
        raise
    except Exception as error:  # each file system raises its own library's errors
        if type(error).__module__.partition(".")[0] == "builtins" and not isinstance(
            error, OSError | ValueError
        ):
            raise
        raise OutputError(f"{url}: {error}; fix the cause and run the load again") from error


@contextmanager
def _without_bucket(url: str) -> Iterator[None]:
    """Convert FileNotFoundError to OutputError: in a write, only the bucket can be missing."""
    try:
        yield
    except FileNotFoundError as error:
        raise OutputError(f"{url}: {error}; create the bucket first, or choose another") from None
