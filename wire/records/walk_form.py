"""Which form of the record walk this process runs: compiled by Cython, or interpreted.

An installation with a C compiler at hand builds `wire.records._record_walk` from
`wire/records/record_walk.py`; any other runs that file as it is, some forty times slower, with the
same results. With METAQUORUM_INTERPRETED=1 in its environment a process runs the interpreted form
in any case; the simulator always does (`simulations.kernel.world`).
"""

import os
from importlib import import_module
from types import ModuleType
from typing import Final

from wire.records import record_columns
from wire.records.record_walk import RecordWalk

INTERPRETED: Final = "METAQUORUM_INTERPRETED"


def compiled_walk() -> type[RecordWalk] | None:
    """The compiled form; None where it was not built."""
    try:
        module = import_module("wire.records._record_walk")
    except ImportError:
        return None
    walk_class: type[RecordWalk] = module.RecordWalk
    return walk_class


def compiled_columns() -> ModuleType | None:
    """The compiled form of `record_columns`; None where it was not built."""
    try:
        return import_module("wire.records._record_columns")
    except ImportError:
        return None


def form_in_use() -> type[RecordWalk]:
    if os.environ.get(INTERPRETED):
        return RecordWalk
    return compiled_walk() or RecordWalk


# Looked up for each walk: the simulator puts the interpreted form here.
walk_class: type[RecordWalk] = form_in_use()


def new_walk(count: int, last_offset_delta: int, dense: bool) -> RecordWalk:
    """A walk that has not begun, in the form in use."""
    return walk_class(count, last_offset_delta, dense)


def columns_form() -> ModuleType:
    """`record_columns`, or its compiled form where the compiled walk is in use."""
    if walk_class is RecordWalk:
        return record_columns
    return compiled_columns() or record_columns


def is_compiled() -> bool:
    """Whether the form in use is the compiled one."""
    return walk_class is not RecordWalk


def form_name() -> str:
    return "compiled" if is_compiled() else "interpreted"
