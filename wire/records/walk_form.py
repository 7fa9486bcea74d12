"""Choice of the form of the record walk in this process: compiled by Cython, or interpreted.

An installation with a C compiler builds `metaquorum.wire.records._record_walk` from
`wire/records/record_walk.py`. Without one, that file runs interpreted: about 40 times slower, with
the same results. METAQUORUM_INTERPRETED=1 in the environment forces the interpreted form; the
simulator always uses it (`metaquorum.simulations.kernel.world`).
"""

import os
from importlib import import_module
from types import ModuleType
from typing import Final

from metaquorum.wire.records import record_columns
from metaquorum.wire.records.record_walk import RecordWalk

INTERPRETED: Final = "METAQUORUM_INTERPRETED"


def compiled_walk() -> type[RecordWalk] | None:
    """Return the compiled form of `RecordWalk`; None if it was not built."""
    try:
        module = import_module("metaquorum.wire.records._record_walk")
    except ImportError:
        return None
    walk_class: type[RecordWalk] = module.RecordWalk
    return walk_class


def compiled_columns() -> ModuleType | None:
    """Return the compiled form of `record_columns`; None if it was not built."""
    try:
        return import_module("metaquorum.wire.records._record_columns")
    except ImportError:
        return None


def form_in_use() -> type[RecordWalk]:
    if os.environ.get(INTERPRETED):
        return RecordWalk
    return compiled_walk() or RecordWalk


# Read for each new walk: the simulator sets it to the interpreted form.
walk_class: type[RecordWalk] = form_in_use()


def new_walk(count: int, last_offset_delta: int, dense: bool) -> RecordWalk:
    """Return a new walk in the form in use."""
    return walk_class(count, last_offset_delta, dense)


def columns_form() -> ModuleType:
    """Return `record_columns`, or its compiled form if the compiled walk is in use."""
    if walk_class is RecordWalk:
        return record_columns
    return compiled_columns() or record_columns


def is_compiled() -> bool:
    """Return whether the compiled form is in use."""
    return walk_class is not RecordWalk


def form_name() -> str:
    return "compiled" if is_compiled() else "interpreted"
