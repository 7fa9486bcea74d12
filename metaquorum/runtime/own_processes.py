"""Command and environment for child processes that run this program's own code.

`python -m` searches the current folder first, so that a `wire.py` there would be imported in place
of this project's package. `-P` excludes the current folder. A child process searches the source
folder only if this process was started from it.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


def own_command(module: str) -> list[str]:
    """Return the command that runs a module of this project; start it in `own_environment`."""
    return [sys.executable, "-P", "-m", module]


def own_environment() -> Mapping[str, str]:
    """Return the environment of a child process: this one's, plus the source folder if needed."""
    if sys.flags.safe_path or not sys.path or Path(sys.path[0]).resolve() != ROOT:
        return os.environ
    before = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), before)))}
