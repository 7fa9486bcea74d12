"""Files with credentials of users: the process's user alone may read them.

The metadata log and its snapshots hold the salted keys of SCRAM users, and so do the records that a
new cluster begins with. Versions before this rule created them readable to everybody, so modes are
checked at every start. Partition logs keep the modes that the umask gives, as with Kafka.
"""

import logging
from collections.abc import Iterable

from metaquorum.runtime.interfaces import Disk

log = logging.getLogger(__name__)


def keep_private(disk: Disk, paths: Iterable[str]) -> None:
    """No other user may use these files and folders, or the log says of which that failed. OSError.

    Slow: for `Disk.run`.
    """
    opened: list[str] = []
    for path in paths:
        try:
            if disk.make_private(path):
                opened.append(path)
        except PermissionError as error:
            log.warning(
                "%s holds credentials of users, and its mode cannot be changed (%s): as its owner,"
                " run `chmod go= %s`",
                path,
                error.strerror,
                path,
            )
    if opened:
        others = f" and {len(opened) - 1} more" if len(opened) > 1 else ""
        log.warning(
            "other users of this machine could use %s%s, with credentials of users in it; they"
            " cannot any more; if one has read them, change the passwords",
            opened[0],
            others,
        )
