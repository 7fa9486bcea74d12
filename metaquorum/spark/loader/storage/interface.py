"""Interface of the storage that a load writes to, and the supported storages.

The commit protocol needs one operation, `create`: exactly one of several writers creates the file,
and a reader never sees a part of it. A local file system does that by link(2), S3 by If-None-Match
(since 2024), Google Cloud Storage by a generation of 0, Azure by If-None-Match; fsspec's s3fs,
gcsfs and adlfs offer it as `mode="create"`. All other file systems of fsspec check whether the file
exists and then write it, or write without a check, so that two drivers could both commit. They are
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from metaquorum.spark.loader.errors import OutputError
from metaquorum.wire.primitives.types import Buffer

LOCAL_SCHEMES: Final = frozenset(("", "file", "local"))
# Distribution for each URL scheme; these stores create objects exclusively on the server.
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
    """A new file with a unique name. After `close` it is complete and durable."""

    def write(self, data: Buffer, /) -> int: ...

    def close(self) -> None: ...

    def discard(self) -> None:
        """Abandon the file; parts of it may remain until the staging folder is deleted."""


class Storage(Protocol):
    """Storage of one table. Paths are relative, with `/`. All methods are blocking.

    They raise OutputError if the storage fails.
    """

    url: str  # for messages: without credentials
    is_local: bool

    def create(self, path: str, data: bytes) -> None:
        """Create the file, complete and durable. Raises FileExistsError if it exists."""

    def read(self, path: str, max_bytes: int) -> bytes:
        """Return the content of the file.

        Raises FileNotFoundError, and OutputError if it is longer than `max_bytes`.
        """

    def list_files(self, folder: str) -> Mapping[str, int]:
        """Return the size of each file below the folder, by path; empty without the folder."""

    def names(self) -> list[str]:
        """Return the names at the top of the storage."""

    def open_output(self, path: str) -> OutputFile: ...

    def make_durable(self, folder: str) -> None:
        """Make the entries of the folder durable, so that they survive a power failure."""

    def publish(self, staged: str, path: str) -> None:
        """Move or copy the staged file to `path`. It is idempotent, and repeats a partial call."""

    def delete(self, path: str) -> None:
        """Delete the file, if it exists."""

    def delete_folder(self, folder: str) -> None:
        """Delete all files below the folder."""

    def overwrite(self, path: str, data: bytes) -> None:
        """Write the file, without durability: only for the driver lock."""


def open_storage(url: str, options: Mapping[str, Any] | None = None) -> Storage:
    """Return the storage at the URL or the local path. Raises OutputError if it is unsupported.

    `options` are the arguments of fsspec's file system, including credentials.
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
            f"{scheme}:// cannot create a file exclusively, so two loads at once could both "
            f"commit; write to a local folder, or to one of {known}"
        )
    assert parts is not None
    if "@" in parts.netloc and not scheme.startswith(("abfs", "az")):
        raise OutputError(
            f"the URL {scheme}://... has credentials, which logs would show; give them in the "
            "environment, or in storage options"
        )
    if parts.query or parts.fragment:
        raise OutputError(
            f"the URL {scheme}://{parts.netloc}{parts.path} ends with a query or a fragment; "
            "leave it out"
        )
    from metaquorum.spark.loader.storage.object_storage import ObjectStorage

    return ObjectStorage(url, OBJECT_STORES[scheme], options or {})
