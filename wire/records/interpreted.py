"""Replacement of the module `cython` in interpreted code, so that a node imports no compiler."""

from typing import Any, Final

compiled: Final = False
nogil: Any = None  # only compiled code releases the GIL
