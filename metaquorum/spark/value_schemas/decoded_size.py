"""Estimate of the memory of decoded values: a few bytes may represent millions of parts.

A decoder charges a `Meter` for each container of a value (record, array, map) *before* it makes the
parts, with the size of the Python objects that `pa.array` then reads; their Arrow form is smaller,
but for parts that are one shared object in Python. Text and bytes are charged by the bytes of the
encoded value, which contains them, and by their defaults. The estimate depends on the value and its
schemas alone, so each attempt at a range rejects the same values.

    MAX_VALUE_BYTES   of one value; a value beyond it is rejected
    PIECE_BYTES       of the rows that are held as Python objects at a time (`decode_each`)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from metaquorum.spark.value_schemas.decoded import RejectedValueError

# Values of honest topics take 2 to 40 times their encoded size, and Kafka's default limit of a
# message is 1 MiB.
MAX_VALUE_BYTES: Final = 128 << 20

SLOT_BYTES: Final = 8  # a reference in a list or tuple
LIST_BYTES: Final = sys.getsizeof([])
PAIR_BYTES: Final = sys.getsizeof((None, None))
TEXT_BYTES: Final = sys.getsizeof("")  # without its characters
_OCTETS_BYTES: Final = sys.getsizeof(b"")
_NUMBER_BYTES: Final = sys.getsizeof(1 << 40)
_REAL_BYTES: Final = sys.getsizeof(0.5)
_DECIMAL_BYTES: Final = sys.getsizeof(Decimal(1))


class Meter:
    """Estimated bytes of the value that is being decoded."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = 0

    def charge(self, size_bytes: int) -> None:
        """Add to the estimate. Raises RejectedValueError beyond MAX_VALUE_BYTES."""
        self.used += size_bytes
        if self.used > MAX_VALUE_BYTES:
            raise RejectedValueError(
                f"the decoded value would take more than {MAX_VALUE_BYTES >> 20} MiB of memory"
            )


def scalar_bytes(kind: pa.DataType) -> int:
    """Return the size of one item of this type, without characters; 0 for a container."""
    types = pa.types
    if types.is_nested(kind) or types.is_boolean(kind) or types.is_null(kind):
        return 0
    if types.is_string(kind):
        return TEXT_BYTES
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return _OCTETS_BYTES
    if types.is_decimal(kind):
        return _DECIMAL_BYTES
    return _REAL_BYTES if types.is_floating(kind) else _NUMBER_BYTES


def dict_bytes(fields: int) -> int:
    """Return the size of a dict with `fields` keys, which are shared by all rows."""
    return sys.getsizeof(dict.fromkeys(map(str, range(fields))))


def row_bytes(kind: pa.DataType) -> int:
    """Return the size of a row of the struct: a list of columns, with their scalars."""
    return LIST_BYTES + sum(
        SLOT_BYTES + scalar_bytes(kind.field(at).type) for at in range(kind.num_fields)
    )


def struct_bytes(kind: pa.DataType) -> int:
    """Return the size of a nested struct: a dict, with its scalars."""
    scalars = (scalar_bytes(kind.field(at).type) for at in range(kind.num_fields))
    return dict_bytes(kind.num_fields) + sum(scalars)


def item_bytes(kind: pa.DataType) -> int:
    """Return the size of one item in a list."""
    return SLOT_BYTES + scalar_bytes(kind)


def entry_bytes(keys: pa.DataType, items: pa.DataType) -> int:
    """Return the size of one entry of a map, in a list of pairs."""
    return SLOT_BYTES + PAIR_BYTES + scalar_bytes(keys) + scalar_bytes(items)


def default_bytes(default: Any) -> int:
    """Return the size of a default value in a schema, which is a value of JSON."""
    if default is None or isinstance(default, bool):
        return 0
    if isinstance(default, str):
        return TEXT_BYTES + len(default.encode("utf-8", "surrogatepass"))
    if isinstance(default, Mapping):
        parts = sum(PAIR_BYTES + default_bytes(part) for part in default.values())
        return dict_bytes(len(default)) + parts
    if isinstance(default, list):
        return LIST_BYTES + sum(SLOT_BYTES + default_bytes(part) for part in default)
    return _NUMBER_BYTES
