"""Typed access to fields of JSON files; each value is checked, because the file is not trusted.

All functions raise ValueError, with the field and the cause, if a value is invalid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

MAX_INT64: Final = 2**63 - 1
# A range is 4 objects with 30 fields, and a load has at most MAX_RANGES.
MAX_PARTS: Final = 8_000_000
_ID: Final = re.compile(r"[0-9a-f]{16}")


class NewerFormatError(ValueError):
    """The file was written by a later version of this program."""


def encode(data: Any) -> bytes:
    """Return one line of ASCII JSON; control characters are escaped."""
    return json.dumps(data, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes) -> Mapping[str, Any]:
    """Return the object that `encode` has written.

    The memory of its parts is bounded: nothing is parsed beyond MAX_PARTS.
    """
    parts = sum(map(data.count, (b"{", b"[", b",")))
    if parts > MAX_PARTS:
        raise ValueError(f"it has {parts} parts, more than the {MAX_PARTS} of any load")
    if not data.isascii():
        raise ValueError("it has characters that are not ASCII")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    return mapping(found, "it")


def check_names(data: Mapping[str, Any], what: str, *names: str) -> None:
    """Raise ValueError unless the object has exactly the fields `names`."""
    for name in names:
        if name not in data:
            raise ValueError(f"{what} has no field {name!r}")
    for name in data:
        if name not in names:
            raise ValueError(f"{what} has an unknown field {name[:100]!r}")


def check_format(data: Mapping[str, Any], kind: str, newest: int) -> None:
    """Raise ValueError unless the file is of this kind, NewerFormatError if it is too new."""
    if data.get("kind") != kind:
        raise ValueError(f"it is not a {kind}")
    version = whole(data, "format", least=1)
    if version > newest:
        raise NewerFormatError(
            f"it has format {version}, but this program reads formats up to {newest}: "
            "use a newer metaquorum"
        )


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")  # noqa: TRY004 - an error in a file
    return value


def sequence(data: Mapping[str, Any], name: str) -> list[Any]:
    value = data.get(name)
    if not isinstance(value, list):
        raise ValueError(f"{name} is not a list")  # noqa: TRY004
    return value


def text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a string")  # noqa: TRY004
    return value


def text_or_none(data: Mapping[str, Any], name: str) -> str | None:
    return None if data.get(name) is None else text(data, name)


def random_id(data: Mapping[str, Any], name: str) -> str:
    """Return an id of 16 hexadecimal digits, which paths contain."""
    found = text(data, name)
    if not _ID.fullmatch(found):
        raise ValueError(f"{name} is not 16 hexadecimal digits")
    return found


def whole(data: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    value = data.get(name)
    if type(value) is not int or not least <= value <= MAX_INT64:
        raise ValueError(f"{name} is not a whole number of at least {least}")
    return value


def whole_or_none(data: Mapping[str, Any], name: str, *, least: int = 0) -> int | None:
    return None if data.get(name) is None else whole(data, name, least=least)


def flag(data: Mapping[str, Any], name: str) -> bool:
    value = data.get(name)
    if type(value) is not bool:
        raise ValueError(f"{name} is neither true nor false")
    return value
