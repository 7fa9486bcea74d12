"""Output that a full disk or a closed pipe refuses, when a command ends."""

import os
import sys
from contextlib import suppress


def discard_refused_output() -> OSError | None:
    """Discard what standard output and standard error refuse; return the error of the former.

    Python writes what its buffers hold again when it ends, and a failure would replace the
    command's status by 120.
    """
    refused = None
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:  # None: closed when the process started
                stream.flush()
        except OSError as error:
            refused = error if stream is sys.stdout else refused
            with suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
    return refused
