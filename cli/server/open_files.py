"""The limit of open files of this process: raised at the start, and a warning if it is low."""

import logging
import resource
from typing import Final

log = logging.getLogger(__name__)

# Room for the files of logs, for the rest of the node, and for some 3,000 connections.
NEEDED_OPEN_FILES: Final = 4096
# Limits to try in turn if the kernel refuses the hard one as soft limit: macOS has a hard limit of
# "unlimited", but a largest number of files of a process; on Linux, fs.nr_open may be lower.
CANDIDATES: Final = (1_048_576, 65_536, 10_240)


def raise_open_files_limit() -> int | None:
    """Raise the soft limit to the hard one; return it, or None if there is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            soft = _raise_limit(soft, hard)
        except (OSError, ValueError) as error:
            wanted = "unlimited" if hard == resource.RLIM_INFINITY else hard
            log.warning(
                "cannot raise the limit of open files from %d to %s: %s", soft, wanted, error
            )
    return None if soft == resource.RLIM_INFINITY else soft


def _raise_limit(soft: int, hard: int) -> int:
    """Set the largest soft limit that the kernel accepts, and return it.

    The hard limit is lowered only if the kernel accepts none with it (Linux, fs.nr_open), since
    that cannot be undone. Raises OSError or ValueError, of the first attempt, if all fail.
    """
    has_end = hard != resource.RLIM_INFINITY
    lower = [most for most in CANDIDATES if soft < most and not (has_end and most >= hard)]
    attempts = [(most, hard) for most in (hard, *lower)] + [(most, most) for most in lower]
    first: OSError | ValueError | None = None
    for attempt in attempts:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, attempt)
        except (OSError, ValueError) as error:
            first = first or error
        else:
            return attempt[0]
    assert first is not None
    raise first


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
