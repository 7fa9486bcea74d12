"""Stands for the module `cython` where that is not installed: what imports it runs interpreted."""

from typing import Any, Final

compiled: Final = False
nogil: Any = None  # only compiled code releases the GIL
