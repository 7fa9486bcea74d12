"""Common parts of the two code generators: a source text under construction, type widths.

`metaquorum.wire.schema.decoding` and `metaquorum.wire.schema.encoding` turn one table at one
version into one straight-line function. Adjacent fields of fixed width, with the length that
follows them, use one `struct.Struct` call; a length below 128 of a flexible version is handled
inline. The source is made from this project's tables only, never from the content of a message.
"""

from collections.abc import Callable
from typing import Any, Final

from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.schema.message import Field, Message, Struct

# Wire type: its code in `struct` formats.
FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
WIDTH: Final = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}

STRING_MAX_BYTES: Final = 32767  # a non-compact length is an int16; Kafka limits compact ones too
# Limit on the elements of all arrays of one message. It bounds the memory that a frame can allocate
# and the time that it can block the event loop. Requests come from untrusted clients; a response
# answers this process's own request.
REQUEST_MAX_ELEMENTS: Final = 100_000  # some 0.5 s of the loop, at 5 us each
RESPONSE_MAX_ELEMENTS: Final = 10_000_000
# Elements between two yields of a codec in pieces, some microseconds each
PIECE_ELEMENTS: Final = 64
# Numbers between two yields in an array of numbers, which are decoded together
PIECE_NUMBERS: Final = 4096


class Source:
    """Source text of one function under construction, and the constants that the text names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {}
        self.indent = 1
        self._names = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def block(self, text: str) -> "Source":
        """Write `text`, the first line of a block; use the result in a `with` for its body."""
        self.line(text)
        return self

    def __enter__(self) -> None:
        self.indent += 1

    def __exit__(self, *_: object) -> None:
        self.indent -= 1

    def name(self, stem: str) -> str:
        """Return a new variable name."""
        self._names += 1
        return f"{stem}{self._names}"

    def constant(self, value: Any, stem: str) -> str:
        """Return the name of `value` in the scope of the function."""
        for name, known in self.scope.items():
            if known is value or (isinstance(value, bytes) and known == value):
                return name
        name = self.name(stem)
        self.scope[name] = value
        return name

    def may_pause(self) -> None:
        """Write a yield after every PIECE_ELEMENTS passes of the enclosing loop."""
        self.line("left -= 1")
        with self.block("if not left:"):
            self.line(f"left = {PIECE_ELEMENTS}")
            self.line("yield")

    def literal(self, value: Any) -> str:
        """Return an expression for a field's default."""
        if value is list:
            return "[]"
        if isinstance(value, type):
            return f"{self.constant(value, value.__name__)}()"
        if isinstance(value, bytes):
            return self.constant(value, "BYTES")
        return repr(value)

    def text(self, signature: str) -> str:
        return "\n".join([signature, *self.lines, ""])

    def function(self, signature: str, filename: str) -> Callable[..., Any]:
        code = compile(self.text(signature), filename, "exec")
        exec(code, self.scope)  # noqa: S102 - source made from our own tables
        function: Callable[..., Any] = self.scope[signature.split()[1].partition("(")[0]]
        return function


def check_served(cls: type[Message], version: int) -> None:
    """Raise WireError if the table does not have `version`."""
    if version not in cls.VERSIONS:
        raise WireError(f"{cls.__name__} has no version {version}")


def fields_at(cls: type[Struct], version: int) -> tuple[list[Field], list[Field]]:
    """Return the fields of the body and of the tagged section (by tag), both in wire order."""
    present = [field for field in cls.FIELDS if version in field.versions]
    body = [field for field in present if field.tag is None]
    tagged = [field for field in present if field.tag is not None]
    return body, sorted(tagged, key=lambda field: field.tag or 0)


def item_struct(field: Field) -> type[Struct]:
    assert isinstance(field.item, type)
    return field.item


def min_width(cls: type[Struct], version: int, flexible: bool) -> int:
    """Return the minimum encoded size of a struct, which bounds the count of an array."""
    body, _ = fields_at(cls, version)
    total = 1 if flexible else 0
    for field in body:
        if field.kind in FIXED:
            total += WIDTH[FIXED[field.kind]]
        elif field.kind == "struct":
            nullable = version in field.nullable
            total += 1 if nullable else min_width(item_struct(field), version, flexible)
        else:
            total += 1 if flexible else 2 if field.kind == "string" else 4
    return max(total, 1)


def min_item_width(field: Field, version: int, flexible: bool) -> int:
    if isinstance(field.item, type):
        return min_width(field.item, version, flexible)
    if field.item in FIXED:
        return WIDTH[FIXED[field.item]]
    return 1 if flexible else 2 if field.item == "string" else 4


def is_fixed_width(cls: type[Struct], version: int) -> bool:
    """Return whether all instances without tagged fields have the same encoded size."""
    body, _ = fields_at(cls, version)
    return bool(body) and all(field.kind in FIXED for field in body)
