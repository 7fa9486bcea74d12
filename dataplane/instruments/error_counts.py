"""Counts of error codes in responses, by API, at any depth of a response.

The positions of the error codes in a message are derived once per message class, from its table.
Plain state; used only if metrics are enabled.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from metaquorum.dataplane.scheduling.time_slices import in_pieces
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.schema.message import Field, Struct

_CODE: Final = "error_code"
# Calls its second argument for each error code of a message that is not 0.
_Look: TypeAlias = Callable[[Any, Callable[[int], None]], None]


class EncodedRow(bytes):
    """Encoded part of a response, with the error codes in it."""

    codes: Counter[int]

    @classmethod
    def of(cls, data: bytes, codes: Counter[int]) -> bytes:
        """Return `data` with its error codes, or `data` itself if there are none."""
        if not codes:
            return data
        row = cls(data)
        row.codes = codes
        return row


class ErrorCounts:
    """Counts of error codes in sent responses; `by_code` is keyed by API key and code."""

    def __init__(self) -> None:
        self.by_code: Counter[tuple[int, int]] = Counter()
        self._looks: dict[type, _Look | None] = {}

    def add(self, api_key: int, code: int) -> None:
        self.by_code[api_key, code] += 1

    def count(self, api_key: int, answer: Struct) -> None:
        cls = type(answer)
        if cls not in self._looks:
            self._looks[cls] = _look_of(cls)
        if (look := self._looks[cls]) is not None:
            look(answer, lambda code: self.add(api_key, code))

    async def count_in_pieces(self, api_key: int, answer: Struct) -> None:
        """Count the error codes of a long response, in pieces."""

        def count_one(part: Struct | EncodedRow) -> None:
            if isinstance(part, EncodedRow):
                for code in part.codes.elements():
                    self.add(api_key, code)
            elif code := getattr(part, _CODE, 0):
                self.add(api_key, code)

        await in_pieces(_parts_of(answer), count_one)

    def of(self, api_key: int) -> int:
        """Return the number of errors in responses of that API."""
        return sum(count for (key, _), count in self.by_code.items() if key == api_key)


def _parts_of(answer: Struct) -> Iterator[Struct | EncodedRow]:
    """Yield the response and all structs in it."""
    yield answer
    for field in _structs_in(type(answer)):
        value = getattr(answer, field.name)
        if value is None:
            continue
        for one in value if field.kind == "array" else (value,):
            if isinstance(one, Struct):
                yield from _parts_of(one)
            elif isinstance(one, EncodedRow):
                yield one


@functools.cache
def _structs_in(cls: type[Struct]) -> list[Field]:
    return [field for field in cls.FIELDS if isinstance(field.item, type)]


def _look_of(cls: type[Struct]) -> _Look | None:
    """Return the function that finds the error codes of a message class; None if it has none."""
    has_code = any(field.name == _CODE for field in cls.FIELDS)
    inner: list[tuple[Field, _Look]] = []
    for field in cls.FIELDS:
        if isinstance(field.item, type) and (within := _look_of(field.item)) is not None:
            inner.append((field, within))
    if not has_code and not inner:
        return None

    def look(message: Any, on_code: Callable[[int], None]) -> None:
        if has_code and message.error_code:
            on_code(message.error_code)
        for field, look_within in inner:
            value = getattr(message, field.name)
            if value is None:
                continue
            for one in value if field.kind == "array" else (value,):
                if not (field.may_be_encoded and isinstance(one, bytes)):
                    look_within(one, on_code)
                elif isinstance(one, EncodedRow):
                    for code in one.codes.elements():
                        on_code(code)

    return look


def name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
