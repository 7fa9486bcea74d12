"""What a decoder of record values answers: columns of what was decoded, reasons for the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from metaquorum.spark.errors import LoadError
from wire.primitives.frozen import frozen

MAX_REASON_CHARACTERS: Final = 300
_MAX_PATH_CHARACTERS: Final = 150
_MAX_SHOWN_CHARACTERS: Final = 60
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)

TOMBSTONE: Final = "the value is null (a tombstone)"


class SchemaError(LoadError):
    """Values cannot be decoded to the schema that was given: one sentence on what to change."""


class RejectedValueError(ValueError):
    """A value is not of the schema; says which part of it is wrong, and how.

    Raised with the message alone where the wrong part is; `under` adds the path on the way out.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self._message = message
        self._steps: list[str] = []

    def under(self, step: str) -> RejectedValueError:
        """The same, for the value that has the wrong part at `step` (`field` or `item`)."""
        self._steps.append(step)
        return self

    @property
    def reason(self) -> str:
        """One sentence of at most MAX_REASON_CHARACTERS, such as "$.user.id: 'x' is no int64"."""
        path = "$" + "".join(reversed(self._steps))
        if len(path) > _MAX_PATH_CHARACTERS:
            path = path[: _MAX_PATH_CHARACTERS - 3] + "..."
        return bounded(f"{path}: {self._message}")


def field_step(name: str) -> str:
    """The step of a path to the field, or to the entry of a map."""
    return f".{name}" if _PLAIN_NAME.fullmatch(name) else f"[{show(name)}]"


def item_step(index: int) -> str:
    return f"[{index}]"


def show(value: object) -> str:
    """The value as a reason shows it: cut where it is long, with escapes for what does not print.

    Of a container only its kind: its repr could take as long as the value is large.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str | bytes) and len(value) > _MAX_SHOWN_CHARACTERS:
        return ascii(value[: _MAX_SHOWN_CHARACTERS - 3]) + "..."
    return ascii(value)


def bounded(reason: str) -> str:
    """The reason, cut and fit for UTF-8."""
    text = reason.encode("utf-8", "backslashreplace").decode()
    if len(text) <= MAX_REASON_CHARACTERS:
        return text
    return text[: MAX_REASON_CHARACTERS - 3] + "..."


@frozen
class Decoded:
    """The values of one batch: each index is either among `kept` or among `rejected`."""

    columns: pa.RecordBatch  # one row for each of `kept`, in this order
    kept: pa.Array  # int64: indices of the values that were decoded, ascending
    rejected: pa.Array  # int64: indices of those that were not, ascending
    reasons: pa.StringArray  # one for each of `rejected`, of at most MAX_REASON_CHARACTERS


class ValueDecoder(Protocol):
    arrow_schema: pa.Schema  # of the columns that a value becomes

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Each value is decoded or rejected with its reason.

        Never raises for what a value holds; LoadError if the schema registry does not answer.
        """
        ...


def decode_each(
    values: pa.BinaryArray, schema: pa.Schema, decode_one: Callable[[bytes], Sequence[Any]]
) -> Decoded:
    """What `decode_one` says of each value that is not null: its columns, or RejectedValueError.

    A null value (a tombstone) is rejected: a row of nulls would be that of a value without fields.
    """
    rows: list[Sequence[Any]] = []
    kept: list[int] = []
    rejected: list[int] = []
    reasons: list[str] = []
    for index, value in enumerate(values.to_pylist()):
        if value is None:
            rejected.append(index)
            reasons.append(TOMBSTONE)
            continue
        try:
            rows.append(decode_one(value))
        except RejectedValueError as error:
            rejected.append(index)
            reasons.append(error.reason)
        else:
            kept.append(index)
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)]
    return Decoded(
        columns=pa.RecordBatch.from_arrays(columns, schema=schema),
        kept=pa.array(kept, pa.int64()),
        rejected=pa.array(rejected, pa.int64()),
        reasons=pa.array(reasons, pa.string()),
    )
