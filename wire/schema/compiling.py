"""What the two generators share: a source file being written, and how wide a wire type is.

`wire.schema.decoding` and `wire.schema.encoding` turn one table at one version into one
straight-line function. Neighbours of fixed width, together with the length that follows them,
travel in one `struct.Struct` call; a length below 128 of a flexible version is handled in place.
Nothing of a message's content reaches the source: it is made of our own tables only.
"""

from collections.abc import Callable
from typing import Any, Final

from wire.primitives.errors import WireError
from wire.schema.message import Field, Message, Struct

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

STRING_MAX_BYTES: Final = 32767  # a legacy length is an int16, and Kafka holds the compact to it
# Elements of all arrays of one message together: what a frame can make us allocate and how long it
# can keep the loop busy. Requests come from anyone; a response is what we asked for.
REQUEST_MAX_ELEMENTS: Final = 100_000  # some 0.5 s of the loop, at 5 us each
RESPONSE_MAX_ELEMENTS: Final = 10_000_000
# What is coded in pieces may be interrupted after so many elements, some microseconds each.
PIECE_ELEMENTS: Final = 64
# And after so many numbers of an array of numbers, which are read together.
PIECE_NUMBERS: Final = 4096


class Source:
    """Lines of a function at their indentation, and the names they refer to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {}
        self.indent = 1
        self._names = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def block(self, text: str) -> "Source":
        """Write `text`, a line that opens a block; `with` closes it."""
        self.line(text)
        return self

    def __enter__(self) -> None:
        self.indent += 1

    def __exit__(self, *_: object) -> None:
        self.indent -= 1

    def name(self, stem: str) -> str:
        """A variable nobody else has."""
        self._names += 1
        return f"{stem}{self._names}"

    def constant(self, value: Any, stem: str) -> str:
        """The name under which the function finds `value`."""
        for name, known in self.scope.items():
            if known is value or (isinstance(value, bytes) and known == value):
                return name
        name = self.name(stem)
        self.scope[name] = value
        return name

    def may_pause(self) -> None:
        """In a loop over elements, of a function that is to be a generator: every few it yields."""
        self.line("left -= 1")
        with self.block("if not left:"):
            self.line(f"left = {PIECE_ELEMENTS}")
            self.line("yield")

    def literal(self, value: Any) -> str:
        """An expression for a field's default."""
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
        exec(code, self.scope)  # noqa: S102 - source made of our own tables
        function: Callable[..., Any] = self.scope[signature.split()[1].partition("(")[0]]
        return function


def check_served(cls: type[Message], version: int) -> None:
    """WireError when the table has no such version."""
    if version not in cls.VERSIONS:
        raise WireError(f"{cls.__name__} has no version {version}")


def fields_at(cls: type[Struct], version: int) -> tuple[list[Field], list[Field]]:
    """Those in the body and those in the tagged section (by tag), in wire order."""
    present = [field for field in cls.FIELDS if version in field.versions]
    body = [field for field in present if field.tag is None]
    tagged = [field for field in present if field.tag is not None]
    return body, sorted(tagged, key=lambda field: field.tag or 0)


def item_struct(field: Field) -> type[Struct]:
    assert isinstance(field.item, type)
    return field.item


def min_width(cls: type[Struct], version: int, flexible: bool) -> int:
    """The fewest bytes a struct can take; what bounds the count of an array."""
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
    """Whether each instance, without tagged fields, takes the same bytes."""
    body, _ = fields_at(cls, version)
    return bool(body) and all(field.kind in FIXED for field in body)
