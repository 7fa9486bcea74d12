"""The secret from which the salts of SCRAM users that do not exist are derived (`scram`).

All workers of a cluster derive it from the cluster's secret, so that they show the same salts. A
node that is a cluster of its own needs no secret, and keeps a key in its data directory:

    <data>/decoy.key     32 random bytes; its owner alone may read them
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
    """The same on every node that has this cluster secret."""
    return hmac.digest(secret, b"SCRAM of users who are not there", "sha256")


def kept_decoy_key(disk: Disk, data_dir: str, random: Random) -> bytes:
    """The same whenever the node of this data directory starts. Slow: for `Disk.run`. StorageError.

    `random` must be one that nobody can foretell.
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
        raise StorageError(f"{path} cannot be used: {error.strerror or error}") from error
    return key
