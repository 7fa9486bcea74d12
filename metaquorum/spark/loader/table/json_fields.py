"""Typed access to fields of JSON files; each value is checked, because the file is not trusted.

All functions raise ValueError, with the field and the cause, if a value is invalid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

MAX_INT64: Final = 2**63 - 1


class NewerFormatError(ValueError):
    """The file was written by a later version of this program."""


def encode(data: Any) -> bytes:
    """Return one line of ASCII JSON; control characters are escaped."""
    return json.dumps(data, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    return mapping(found, "it")


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
