"""Generator of the encoder of one message at one version.

The generated function appends pieces to a list: packed runs of fixed-width fields, encoded strings,
and the record batches unchanged, which may be buffers or `RecordsHole`s. No bytes are copied until
the caller joins the pieces. As in Kafka, a tagged field is written if its value is not the default.
"""

import struct
from collections.abc import Callable, Generator
from typing import Any, Final

from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.primitives.types import BUFFERS
from metaquorum.wire.schema.compiling import (
    FIXED,
    PIECE_ELEMENTS,
    STRING_MAX_BYTES,
    WIDTH,
    Source,
    fields_at,
    item_struct,
)
from metaquorum.wire.schema.message import Field, Message, Struct

Encoder = Callable[[Any], bytes]
PartsEncoder = Callable[[Any], list[Any]]
EncoderInPieces = Callable[[Any], Generator[None, None, list[Any]]]


def uvarint(value: int) -> bytes:
    """Return the unsigned varint of `value`: seven bits per byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string_uvarint(value: int) -> bytes:
    """Return the unsigned varint of a string's length plus one.

    Raises WireError if the string is longer than STRING_MAX_BYTES.
    """
    if value > STRING_MAX_BYTES + 1:
        raise WireError(f"a string of {value - 1} bytes exceeds the limit of {STRING_MAX_BYTES}")
    return uvarint(value)


def cannot_carry(message: Struct, version: int, what: object) -> WireError:
    return WireError(f"{type(message).__name__} v{version} cannot carry {what}")


_RUNTIME: Final[dict[str, Any]] = {
    "uvarint": uvarint,
    "string_uvarint": string_uvarint,
    "cannot_carry": cannot_carry,
    "pack": struct.pack,
    "join": b"".join,
    "ONE_BYTE": tuple(bytes([byte]) for byte in range(128)),
    "BUFFERS": BUFFERS,
    "FAILURES": (struct.error, AttributeError, TypeError, UnicodeEncodeError),
}

_SIGNATURE: Final = "def encode(m):"


def compile_encoder(cls: type[Message], version: int) -> Encoder:
    """Return the encoder to one `bytes`.

    The encoder raises WireError if this version cannot carry a value.
    """
    return _generate(cls, version, "join(out)").function(
        _SIGNATURE, f"<encode {cls.__name__} v{version}>"
    )


def compile_parts_encoder(cls: type[Message], version: int) -> PartsEncoder:
    """Return the encoder to a list of pieces: buffers, and the holes given as records."""
    return _generate(cls, version, "out").function(
        _SIGNATURE, f"<encode {cls.__name__} v{version} in parts>"
    )


def compile_encoder_in_pieces(cls: type[Message], version: int) -> EncoderInPieces:
    """Return a generator function that yields every few elements and returns a list of pieces."""
    return _generate(cls, version, "out", in_pieces=True).function(
        _SIGNATURE, f"<encode {cls.__name__} v{version} in pieces>"
    )


def compile_item_encoder(cls: type[Struct], version: int, *, flexible: bool) -> Encoder:
    """Return the encoder of one struct to its bytes in a message of this version."""
    return _generate_at(cls, version, "join(out)", flexible=flexible).function(
        _SIGNATURE, f"<encode {cls.__name__} v{version}>"
    )


def encoder_source(cls: type[Message], version: int) -> str:
    """Return the generated source, for debugging."""
    return _generate(cls, version, "join(out)").text(_SIGNATURE)


def _generate(cls: type[Message], version: int, result: str, *, in_pieces: bool = False) -> Source:
    flexible = version in cls.FLEXIBLE
    return _generate_at(cls, version, result, flexible=flexible, in_pieces=in_pieces)


def _generate_at(
    cls: type[Struct], version: int, result: str, *, flexible: bool, in_pieces: bool = False
) -> Source:
    source = Source()
    source.scope.update(_RUNTIME)
    is_request = cls.__name__.endswith("Request")
    with source.block("try:"):
        source.line("out = []")
        if in_pieces:
            source.line(f"left = {PIECE_ELEMENTS}")
        generator = _Generator(source, version, flexible, is_request, in_pieces)
        generator.struct(cls, "m")
        generator.flush()
        source.line(f"return {result}")
        if in_pieces:
            source.line("yield")  # never reached: makes the function a generator
    with source.block("except FAILURES as error:"):
        source.line(f"raise cannot_carry(m, {version}, error) from error")
    return source


class _Generator:
    def __init__(
        self, source: Source, version: int, flexible: bool, is_request: bool, in_pieces: bool
    ) -> None:
        self.source = source
        self.in_pieces = in_pieces
        self.version = version
        self.flexible = flexible
        self.is_request = is_request
        self.out = "out"
        self.run: list[tuple[str, str]] = []  # format code and value of pending writes

    def packed(self, *more: tuple[str, str]) -> str:
        """Return an expression for the bytes of the pending writes and `more`; "" for none."""
        run = [*self.run, *more]
        values = ", ".join(value for _, value in run if value)
        if not run:
            return ""
        if not values:
            return self.source.constant(bytes(len(run)), "ZEROS")
        packer = struct.Struct(">" + "".join(code for code, _ in run)).pack
        return f"{self.source.constant(packer, 'pack')}({values})"

    def append(self, expression: str) -> None:
        if expression:
            self.source.line(f"{self.out}.append({expression})")

    def flush(self, *more: tuple[str, str]) -> None:
        self.append(self.packed(*more))
        self.run = []

    def struct(self, cls: type[Struct], value: str) -> None:
        """Write the fields of `value`; fields of fixed width at its end may stay pending."""
        body, tagged = fields_at(cls, self.version)
        if self.is_request:
            self.refuse_lost(cls, value)
        for field in body:
            self.field(field, f"{value}.{field.name}")
        if self.flexible:
            if tagged:
                self.tags(tagged, value)
            else:
                self.run.append(("x", ""))

    def refuse_lost(self, cls: type[Struct], value: str) -> None:
        """Write errors for set fields that this version does not have and are not `ignorable`."""
        for field in cls.FIELDS:
            if self.version not in field.versions and not field.ignorable:
                lost = self.is_set(field, f"{value}.{field.name}")
                error = f"cannot_carry({value}, {self.version}, {field.name!r})"
                self.source.line(f"if {lost}: raise {error}")

    def is_set(self, field: Field, value: str) -> str:
        """Return an expression for whether the value differs from the default."""
        if field.default is None:
            if field.kind == "struct" and not field.nullable.first <= field.nullable.last:
                empty = self.source.constant(item_struct(field)(), "EMPTY")
                return f"{value} is not None and {value} != {empty}"
            return f"{value} is not None"
        if field.default is list:
            return f"{value} != []" if self.version in field.nullable else value
        return f"{value} != {self.source.literal(field.default)}"

    def tags(self, tagged: list[Field], value: str) -> None:
        source = self.source
        conditions = [self.is_set(field, f"{value}.{field.name}") for field in tagged]
        with source.block(f"if {' or '.join(conditions)}:"):
            pending, outer = self.run, self.out
            self.append(self.packed())
            self.run = []
            sections = source.name("tags")
            source.line(f"{sections} = []")
            for field, condition in zip(tagged, conditions, strict=True):
                with source.block(f"if {condition}:"):
                    self.out = source.name("out")
                    source.line(f"{self.out} = []")
                    self.field(field, f"{value}.{field.name}")
                    self.flush()
                    section = source.name("section")
                    source.line(f"{section} = join({self.out})")
                    tag = source.constant(uvarint(field.tag or 0), "TAG")
                    source.line(f"{sections} += ({tag}, uvarint(len({section})), {section})")
            self.out = outer
            self.append(f"uvarint(len({sections}) // 3)")
            source.line(f"{self.out} += {sections}")
            self.run = pending
        with source.block("else:"):
            self.flush(("x", ""))

    def field(self, field: Field, value: str) -> None:
        nullable = self.version in field.nullable
        if field.kind in FIXED:
            self.run.append((FIXED[field.kind], value))
        elif field.kind == "struct":
            self.nested(item_struct(field), value, nullable)
        elif field.kind == "array":
            self.array(field, value, nullable)
        else:
            self.sized(field.kind, value, nullable)

    def nested(self, cls: type[Struct], value: str, nullable: bool) -> None:
        source = self.source
        nested = source.name("s")
        source.line(f"{nested} = {value}")
        if not nullable:
            self.struct(cls, nested)
            return
        pending = self.run
        with source.block(f"if {nested} is None:"):
            self.flush(("b", "-1"))
        with source.block("else:"):
            self.run = [*pending, ("b", "1")]
            self.struct(cls, nested)
            self.flush()

    def length(self, kind: str, length: str) -> None:
        """Write the pending writes and a length (in flexible versions: the length plus one)."""
        source = self.source
        if not self.flexible:
            self.flush(("h" if kind == "string" else "i", length))
            return
        long = f"{'string_' if kind == 'string' else ''}uvarint({length})"
        if not self.run:
            self.append(f"ONE_BYTE[{length}] if {length} < 128 else {long}")
            return
        with source.block(f"if {length} < 128:"):
            self.append(self.packed(("B", length)))
        with source.block("else:"):
            self.append(self.packed())
            self.append(long)
        self.run = []

    def measure(self, content: str, expression: str, nullable: bool, null: str = "") -> str:
        """Write the computation of the length field; return its variable."""
        source = self.source
        length = source.name("n")
        plus = " + 1" if self.flexible else ""
        if not nullable:
            if expression != content:
                source.line(f"{content} = {expression}")
            source.line(f"{length} = len({content}){plus}")
            return length
        with source.block(f"if {content} is None:"):
            source.line(f"{length} = {0 if self.flexible else -1}")
            source.line(f"{content} = {null}")
        with source.block("else:"):
            if expression != content:
                source.line(f"{content} = {expression}")
            source.line(f"{length} = len({content}){plus}")
        return length

    def sized(self, kind: str, value: str, nullable: bool) -> None:
        """Write a string, bytes or records."""
        content = self.source.name("c")
        self.source.line(f"{content} = {value}")
        if kind == "records":
            self.records(content, nullable)
            return
        expression = f"{content}.encode()" if kind == "string" else content
        length = self.measure(content, expression, nullable, "b''")
        self.length(kind, length)
        self.append(content)

    def records(self, content: str, nullable: bool) -> None:
        source = self.source
        length = source.name("n")
        plus = " + 1" if self.flexible else ""
        with source.block(f"if type({content}) in BUFFERS:"):
            source.line(f"{length} = len({content}){plus}")
        if nullable:
            with source.block(f"elif {content} is None:"):
                source.line(f"{length} = {0 if self.flexible else -1}")
                source.line(f"{content} = b''")
        with source.block("else:"):
            source.line(f"{length} = {content}.size_bytes{plus}")
        self.length("records", length)
        self.append(content)

    def array(self, field: Field, value: str, nullable: bool) -> None:
        source = self.source
        items, item = source.name("items"), source.name("x")
        source.line(f"{items} = {value}")
        length = self.measure(items, items, nullable, "()")
        self.length("array", length)
        if field.item in FIXED:
            self.fixed_items(FIXED[str(field.item)], items)
            return
        with source.block(f"for {item} in {items}:"):
            if self.in_pieces:
                source.may_pause()
            if field.may_be_encoded:
                with source.block(f"if isinstance({item}, bytes):"):
                    # The pieces are joined later, where only their type distinguishes them
                    # from holes: it must be exactly `bytes`.
                    self.append(f"bytes({item})" if self.in_pieces else item)
                    source.line("continue")
            if isinstance(field.item, type):
                self.struct(field.item, item)
            else:
                self.sized(str(field.item), item, nullable=False)
            self.flush()

    def fixed_items(self, code: str, items: str) -> None:
        if WIDTH[code] == 16:
            self.source.line(f"{self.out} += {items}")
        else:
            self.append(f"pack('>%d{code}' % len({items}), *{items})")
