"""The limit of open files of this process: raised at the start, and a warning if it is low."""

import logging
import resource
from typing import Final

log = logging.getLogger(__name__)

# Room for the files of logs, for the rest of the node, and for some 3,000 connections.
NEEDED_OPEN_FILES: Final = 4096


def raise_open_files_limit() -> int | None:
    """Raise the soft limit to the hard one; return it, or None if there is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:  # a hard limit above the kernel's own
            log.warning("cannot raise the limit of open files from %d to %d: %s", soft, hard, error)
    return None if soft == resource.RLIM_INFINITY else soft


def warn_of_low_limit(open_files: int | None, connections: int) -> None:
    """Log a warning if the limit is too low. `connections`: those for which it has room."""
    if open_files is not None and open_files < NEEDED_OPEN_FILES:
        log.warning(
            "this process may open only %d files, so that at most %d clients can connect: raise the"
            " limit to %d or more (`ulimit -n %d`, or LimitNOFILE=%d in a systemd unit)",
            open_files,
            connections,
            NEEDED_OPEN_FILES,
            NEEDED_OPEN_FILES,
            NEEDED_OPEN_FILES,
        )
