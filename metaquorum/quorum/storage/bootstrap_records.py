"""First records of a new cluster's metadata log, written on each controller by `format`.

    <data>/first.records     one record per line, in hexadecimal

Read at every start, but used only by the controller that bootstraps the cluster. The file contains
user credentials: only its owner may read it.
"""

import os
from collections.abc import Sequence
from typing import Final

from metaquorum.metadata.records import MetadataRecord, RecordError, decode_record, encode_record
from metaquorum.runtime.interfaces import Disk, StorageError, write_atomically
from metaquorum.security.private_files import keep_private

FIRST_RECORDS: Final = "first.records"
MAX_FILE_BYTES: Final = 1 << 20


def write_first_records(disk: Disk, data_dir: str, records: Sequence[MetadataRecord]) -> None:
    """Write the file durably. Blocking: call in `Disk.run`. Raises OSError if the disk fails."""
    text = "".join(encode_record(record).hex() + "\n" for record in records)
    write_atomically(disk, os.path.join(data_dir, FIRST_RECORDS), text.encode(), private=True)


def read_first_records(disk: Disk, data_dir: str) -> list[MetadataRecord]:
    """Return the records; an empty list if there is no file. Blocking: call in `Disk.run`.

    Raises StorageError if the file is damaged.
    """
    path = os.path.join(data_dir, FIRST_RECORDS)
    if not disk.exists(path):
        return []
    keep_private(disk, [path])
    try:
        if disk.size(path) > MAX_FILE_BYTES:
            raise ValueError("the file is too large")
        lines = disk.read_file(path).decode().split()
        return [decode_record(bytes.fromhex(line)) for line in lines]
    except (ValueError, RecordError) as error:
        raise StorageError(f"{path} is damaged: {error}") from None
