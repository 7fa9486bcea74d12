"""Stands for the module `cython` in code that runs interpreted: a node imports no compiler."""

from typing import Any, Final

compiled: Final = False
nogil: Any = None  # only compiled code releases the GIL
