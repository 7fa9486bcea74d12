"""Results of decoding record values: columns of decoded values, reasons of rejected values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Protocol

import pyarrow as pa

from metaquorum.runtime.one_line import one_line
from metaquorum.spark.errors import LoadError
from metaquorum.wire.primitives.frozen import frozen

MAX_REASON_CHARACTERS: Final = 300
_MAX_PATH_CHARACTERS: Final = 150
_MAX_SHOWN_CHARACTERS: Final = 60
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)

TOMBSTONE: Final = "the value is null (a tombstone)"


class SchemaError(LoadError):
    """Values cannot be decoded to the given schema; the message says what to change."""


class RejectedValueError(ValueError):
    """A value does not match the schema; `reason` names the invalid part and the cause.

    The code that finds the invalid part raises it without a path; `under` adds the path.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self._message = message
        self._steps: list[str] = []

    def under(self, step: str) -> RejectedValueError:
        """Return this error, with `step` (a field or an item) put before its path."""
        self._steps.append(step)
        return self

    @property
    def reason(self) -> str:
        """Reason of at most MAX_REASON_CHARACTERS, e.g. "$.user.id: 'x' is not a valid int64"."""
        path = "$" + "".join(reversed(self._steps))
        if len(path) > _MAX_PATH_CHARACTERS:
            path = path[: _MAX_PATH_CHARACTERS - 3] + "..."
        return bounded(f"{path}: {self._message}")


def field_step(name: str) -> str:
    """Return the step of a path to a field, or to the entry of a map."""
    return f".{name}" if _PLAIN_NAME.fullmatch(name) else f"[{show(name)}]"


def item_step(index: int) -> str:
    return f"[{index}]"


def show(value: object) -> str:
    """Return the value as a reason shows it: shortened, with escapes for unprintable characters.

    A container is shown by its kind only: its repr could take as long as the value is large.
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
    """Return the reason, shortened, with escapes for characters that are unsafe to show."""
    text = one_line(reason[: MAX_REASON_CHARACTERS + 1])
    if len(text) <= MAX_REASON_CHARACTERS:
        return text
    return text[: MAX_REASON_CHARACTERS - 3] + "..."


@frozen
class Decoded:
    """Decoded values of a piece of a batch: each index is in either `kept` or `rejected`."""

    columns: pa.RecordBatch  # one row for each index in `kept`, in this order
    kept: pa.Array  # int64: indices of the decoded values, ascending
    rejected: pa.Array  # int64: indices of the rejected values, ascending
    reasons: pa.StringArray  # one for each of `rejected`, at most MAX_REASON_CHARACTERS


class ValueDecoder(Protocol):
    arrow_schema: pa.Schema  # columns of a decoded value

    def decode(self, values: pa.BinaryArray) -> Iterator[Decoded]:
        """Decode each value, or reject it with a reason; yield pieces of consecutive values.

        A piece takes some MB of memory, also if its values expand. Never raises for the content
        of a value. Raises LoadError if the schema registry does not answer.
        """
        ...
