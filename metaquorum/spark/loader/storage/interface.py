"""What a load asks of the place that it writes to, and which places will do.

The commit protocol rests on one operation, `create`: of any number of writers exactly one makes the
file, and whoever sees the file sees all of it. A local file system does that by link(2). Among
object stores S3 (If-None-Match, since 2024), Google Cloud Storage (a generation of 0) and Azure
(If-None-Match) do; fsspec's s3fs, gcsfs and adlfs offer it as `mode="create"`. All other file
systems of fsspec look whether the file is there, and then write it, or write at once: two drivers
could both commit. They are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from metaquorum.spark.loader.errors import OutputError
from wire.primitives.types import Buffer

LOCAL_SCHEMES: Final = frozenset(("", "file", "local"))
# By the distribution that serves them; each of these creates exclusively on the server's side.
OBJECT_STORES: Final[Mapping[str, str]] = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
}


class OutputFile(Protocol):
    """A new file that nobody else knows of. After `close` it is there for good."""

    def write(self, data: Buffer, /) -> int: ...

    def close(self) -> None: ...

    def discard(self) -> None:
        """It is not wanted; what was written may be left for the sweeper."""


class Storage(Protocol):
    """Paths are relative, with `/` between their parts. OutputError where the place fails."""

    url: str  # for messages: without credentials
    is_local: bool

    def create(self, path: str, data: bytes) -> None:
        """The file is there with these bytes, for good; FileExistsError if there was one."""

    def read(self, path: str, max_bytes: int) -> bytes:
        """FileNotFoundError; OutputError if it has more bytes."""

    def list_files(self, folder: str) -> Mapping[str, int]:
        """All files below, by path, and their sizes; none where there is no such folder."""

    def names(self) -> list[str]:
        """What lies at the top."""

    def open_output(self, path: str) -> OutputFile: ...

    def make_durable(self, folder: str) -> None:
        """What can be seen in the folder survives a power failure from now on."""

    def publish(self, staged: str, path: str) -> None:
        """The staged file is at `path`; so it is if that was done before, or in part."""

    def delete(self, path: str) -> None:
        """The file is not there."""

    def delete_folder(self, folder: str) -> None:
        """Nor is anything below the folder."""

    def overwrite(self, path: str, data: bytes) -> None:
        """For what holds nothing that matters."""


def open_storage(url: str, options: Mapping[str, Any] | None = None) -> Storage:
    """The store at the URL or the local path. OutputError says why it will not do.

    `options` are for fsspec's file system, credentials included, as fsspec takes them.
    """
    parts = urlsplit(url) if "://" in url else None
    scheme = "" if parts is None else parts.scheme.lower()
    if scheme in LOCAL_SCHEMES:
        from metaquorum.spark.loader.storage.local_storage import LocalStorage

        path = url if parts is None else (parts.netloc + parts.path)
        return LocalStorage(path)
    if scheme not in OBJECT_STORES:
        known = ", ".join(f"{name}://" for name in OBJECT_STORES)
        raise OutputError(
            f"{scheme}:// cannot create a file exclusively, so that two loads at once could both "
            f"commit; write to a local folder, or to one of {known}"
        )
    assert parts is not None
    if "@" in parts.netloc and not scheme.startswith(("abfs", "az")):
        raise OutputError(
            f"the URL {scheme}://... holds credentials, which would be seen in logs; give them by "
            "the environment, or in storage options"
        )
    if parts.query or parts.fragment:
        raise OutputError(
            f"the URL {scheme}://{parts.netloc}{parts.path} ends with a query or a fragment; "
            "leave it out"
        )
    from metaquorum.spark.loader.storage.object_storage import ObjectStorage

    return ObjectStorage(url, OBJECT_STORES[scheme], options or {})
