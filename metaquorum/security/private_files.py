"""Access modes of files with user credentials: only the user of the process may read them.

The metadata log, its snapshots and the bootstrap records contain the salted keys of SCRAM users.
Older versions created these files readable by all users, so that their modes are checked at every
start. Partition logs keep the modes that the umask gives, as in Kafka.
"""

import logging
from collections.abc import Iterable

from metaquorum.runtime.interfaces import Disk

log = logging.getLogger(__name__)


def keep_private(disk: Disk, paths: Iterable[str]) -> None:
    """Restrict these files and folders to the user of this process.

    Logs a warning for files that another user owns. Blocking: call in `Disk.run`. Raises OSError
    if the disk fails.
    """
    opened: list[str] = []
    for path in paths:
        try:
            if disk.make_private(path):
                opened.append(path)
        except PermissionError as error:
            log.warning(
                "cannot restrict the mode of %s, which contains user credentials: %s; run `chmod"
                " go= %s` as its owner",
                path,
                error.strerror,
                path,
            )
    if opened:
        others = f" and {len(opened) - 1} more" if len(opened) > 1 else ""
        log.warning(
            "%s%s with user credentials was accessible to other users of this machine; the mode is"
            " now restricted; change the passwords if another user may have read them",
            opened[0],
            others,
        )
