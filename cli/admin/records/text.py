"""Text forms of records: the JSON of `consume` and `produce`, and format strings."""

import base64
import binascii
import json
import string
from collections.abc import Callable, Mapping
from typing import Any, Final

from metaquorum.cli.common.output import json_line
from metaquorum.cli.common.times import iso_text
from metaquorum.client.consumer import ConsumedRecord
from metaquorum.client.producer import ProducerRecord

Header = tuple[str, bytes | None]


class TextError(ValueError):
    """Raised if a text has the wrong form; the message names the error."""


_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_INPUT_KEYS: Final = frozenset(
    {"key", "value", "headers", "timestamp", "partition", "key_base64", "value_base64"}
    | {"topic", "offset"}  # fields in the output of `consume`; ignored here
)


# JSON


def to_json(record: ConsumedRecord) -> dict[str, Any]:
    """Return a record as JSON data; bytes that are not UTF-8 become base64 in `key_base64` etc."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **_bytes_to_json("key", record.key),
        **_bytes_to_json("value", record.value),
        "headers": [
            {"key": _header_name(name), **_bytes_to_json("value", value)}
            for name, value in record.headers
        ],
    }


def _bytes_to_json(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def _header_name(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def from_json(text: bytes) -> ProducerRecord:
    """Parse the JSON form of `to_json`; all fields except "value" are optional.

    A value that is not a string is sent as its JSON text. Raises TextError if the text is invalid.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise TextError(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise TextError('expected an object, such as {"value": "text"}')
    if unknown := sorted(set(data) - _INPUT_KEYS):
        raise TextError(
            f"{unknown[0]!r} is unknown; the fields are key, value, headers, timestamp, "
            "partition, and key_base64 and value_base64 for bytes"
        )
    if "value" not in data and "value_base64" not in data:
        raise TextError('"value" is missing; null deletes the key in a compacted topic')
    return ProducerRecord(
        value=_bytes_from_json(data, "value"),
        key=_bytes_from_json(data, "key"),
        headers=_headers_from_json(data.get("headers")),
        timestamp_ms=_timestamp(data.get("timestamp")),
        partition=None,
    )


def _bytes_from_json(data: Mapping[str, Any], name: str) -> bytes | None:
    coded = data.get(f"{name}_base64")
    if coded is not None:
        try:
            return base64.b64decode(coded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise TextError(f"{name}_base64 is not base64") from None
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _headers_from_json(headers: Any) -> tuple[Header, ...]:
    if headers is None:
        return ()
    if isinstance(headers, dict):
        headers = [{"key": name, "value": value} for name, value in headers.items()]
    if not isinstance(headers, list):
        raise TextError('headers must be a list of {"key": ..., "value": ...}, or an object')
    found: list[Header] = []
    for header in headers:
        if not isinstance(header, dict) or not isinstance(header.get("key"), str):
            raise TextError('a header must be an object such as {"key": "name", "value": "text"}')
        found.append((header["key"], _bytes_from_json(header, "value")))
    return tuple(found)


def _timestamp(value: object) -> int | None:
    """Return the timestamp in ms; records of other clients may have negative ones."""
    if value is None or (type(value) is int and -(2**63) <= value < 2**63):
        return value
    raise TextError("timestamp must be a whole number of milliseconds")


# Format strings


def _hex(value: bytes | None) -> bytes:
    return b"" if value is None else value.hex().encode()


def _base64(value: bytes | None) -> bytes:
    return b"" if value is None else base64.b64encode(value)


def _json(value: bytes | None) -> bytes:
    text = None if value is None else value.decode("utf-8", "replace")
    return json_line(text).encode()


def _raw(value: bytes | None) -> bytes:
    return b"" if value is None else value


_CONVERSIONS: Final[Mapping[str, Callable[[bytes | None], bytes]]] = {
    "": _raw,
    "hex": _hex,
    "base64": _base64,
    "json": _json,
}
_FIELDS: Final[Mapping[str, Callable[[ConsumedRecord], bytes | None]]] = {
    "topic": lambda record: record.topic.encode(),
    "partition": lambda record: b"%d" % record.partition,
    "offset": lambda record: b"%d" % record.offset,
    "timestamp": lambda record: b"%d" % record.timestamp_ms,
    "time": lambda record: iso_text(record.timestamp_ms).encode(),
    "key": lambda record: record.key,
    "value": lambda record: record.value,
    "key_size": lambda record: b"%d" % len(record.key or b""),
    "value_size": lambda record: b"%d" % len(record.value or b""),
    "headers": lambda record: _headers_text(record),
}


def _headers_text(record: ConsumedRecord) -> bytes:
    return b",".join(
        name.encode("utf-8", "surrogateescape") + b"=" + (value or b"")
        for name, value in record.headers
    )


def unescape(text: str) -> str:
    r"""Replace the escapes \n, \t, \r, \0 and \\ by their characters."""
    parts = []
    characters = iter(text)
    for character in characters:
        if character == "\\":
            escaped = next(characters, "\\")
            parts.append(_ESCAPES.get(escaped, "\\" + escaped))
        else:
            parts.append(character)
    return "".join(parts)


def formatter(text: str) -> Callable[[ConsumedRecord], bytes]:
    """Return the formatter of a format string. Raises TextError if the string is invalid."""
    pieces: list[bytes | tuple[Callable[..., Any], Callable[..., bytes]]] = []
    try:
        parsed = list(string.Formatter().parse(unescape(text)))
    except ValueError as error:
        raise TextError(f"{error}; write {{{{ and }}}} for literal braces") from None
    for literal, name, conversion, _ in parsed:
        if literal:
            pieces.append(literal.encode())
        if name is None:
            continue
        if name not in _FIELDS:
            raise TextError(f"{{{name}}} is unknown; the fields are {', '.join(_FIELDS)}")
        if conversion not in _CONVERSIONS:
            raise TextError(
                f":{conversion} is unknown; the conversions are :hex, :base64 and :json"
            )
        pieces.append((_FIELDS[name], _CONVERSIONS[conversion or ""]))

    def form(record: ConsumedRecord) -> bytes:
        return b"".join(
            piece if isinstance(piece, bytes) else piece[1](piece[0](record)) for piece in pieces
        )

    return form
