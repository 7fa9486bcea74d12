"""How this program starts itself again: the code that runs now, and nothing of the current folder.

`python -m` puts the current folder before all that is installed, so that a `wire.py` which happens
to lie there would be imported in place of ours. `-P` leaves it out. Only where this program itself
was found there, by somebody who runs it from its sources, the new process looks there, too.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


def own_command(module: str) -> list[str]:
    """The words that run one of our modules; to be started in `own_environment`."""
    return [sys.executable, "-P", "-m", module]


def own_environment() -> Mapping[str, str]:
    """The environment of a process of ours: this one's, or with the place of our sources, too."""
    if sys.flags.safe_path or not sys.path or Path(sys.path[0]).resolve() != ROOT:
        return os.environ
    before = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), before)))}
