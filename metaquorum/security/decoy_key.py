"""Key from which the salts of nonexistent SCRAM users are derived (see `scram`).

All workers of a cluster derive the key from the cluster secret, so that they send the same salts.
A single-node cluster has no secret; the node stores a key in its data directory:

    <data>/decoy.key     32 random bytes; readable by its owner only
"""

import hmac
import os
from random import Random
from typing import Final

from metaquorum.runtime.interfaces import Disk, StorageError, write_atomically
from metaquorum.security.private_files import keep_private

DECOY_KEY: Final = "decoy.key"
KEY_BYTES: Final = 32


def derived_decoy_key(secret: bytes) -> bytes:
    """Return the key derived from the cluster secret, which is the same on every node."""
    return hmac.digest(secret, b"SCRAM of users who are not there", "sha256")


def kept_decoy_key(disk: Disk, data_dir: str, random: Random) -> bytes:
    """Return the key stored in `data_dir`; create it at the first call.

    `random` must be cryptographically secure. Blocking: call in `Disk.run`. Raises StorageError if
    the file cannot be read or written.
    """
    path = os.path.join(data_dir, DECOY_KEY)
    try:
        if disk.exists(path):
            keep_private(disk, [path])
            key = disk.read_file(path)
            if len(key) == KEY_BYTES:
                return key
        key = random.randbytes(KEY_BYTES)
        write_atomically(disk, path, key, private=True)
    except OSError as error:
        raise StorageError(f"cannot read or write {path}: {error.strerror or error}") from error
    return key
