"""The registry of a node's log directories: `<data>/log-dirs.properties`, one line for each.

    #
    <directory id>=<path>

A disk that is not mounted looks like an empty folder, and a directory that was removed from
`log.dirs` is not seen at all. In both cases its partitions must not be created again, empty, in
another directory. A directory therefore stays in the registry until it is found without partitions,
or an operator removes its line. Without the file, the data directory is the only known one.
"""

import os
from collections.abc import Mapping
from typing import Final

from metaquorum.runtime.interfaces import Disk, StorageError, write_atomically

DIR_REGISTRY: Final = "log-dirs.properties"
MAX_FILE_BYTES: Final = 1 << 20
MAX_ID_CHARS: Final = 64


def dir_registry_path(data_dir: str) -> str:
    return os.path.join(data_dir, DIR_REGISTRY)


def read_dir_registry(disk: Disk, data_dir: str) -> dict[str, str] | None:
    """Return paths by directory id; None if the file does not exist.

    Raises StorageError if the file is damaged, OSError if it cannot be read.
    """
    path = dir_registry_path(data_dir)
    if not disk.exists(path):
        return None
    if disk.size(path) > MAX_FILE_BYTES:
        raise StorageError(f"{path} is damaged: the file has more than {MAX_FILE_BYTES} bytes")
    known: dict[str, str] = {}
    for line in disk.read_file(path).decode("utf-8", "surrogateescape").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        directory_id, equals, log_dir = line.partition("=")
        if not equals or not 0 < len(directory_id) <= MAX_ID_CHARS or not log_dir.startswith("/"):
            raise StorageError(f"{path} is damaged: {line[:100]!r} is not <directory id>=<path>")
        known[directory_id] = log_dir
    return known


def write_dir_registry(disk: Disk, data_dir: str, known: Mapping[str, str]) -> None:
    """Write and sync the registry. Raises OSError. Blocking: call it in a worker thread."""
    lines = ["#", *(f"{directory_id}={path}" for directory_id, path in known.items())]
    data = ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")
    write_atomically(disk, dir_registry_path(data_dir), data)
