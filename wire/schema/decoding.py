"""Generator of the decoder of one message at one version.

The generated function accepts any input with few checks. Lengths must not be negative, so the
position only moves forward; a slice that ends beyond the data is detected by the next read of fixed
width (struct.error, IndexError) or by the comparison after the last field. Array counts are checked
against the remaining bytes before any allocation. After a failure
`metaquorum.wire.schema.explaining` decodes the bytes again, slowly, to name the field in the error.
"""

import itertools
import struct
from collections.abc import Callable, Generator
from typing import Any, Final

from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.schema.compiling import (
    FIXED,
    PIECE_ELEMENTS,
    PIECE_NUMBERS,
    REQUEST_MAX_ELEMENTS,
    RESPONSE_MAX_ELEMENTS,
    STRING_MAX_BYTES,
    WIDTH,
    Source,
    fields_at,
    is_fixed_width,
    item_struct,
    min_item_width,
)
from metaquorum.wire.schema.explaining import explain
from metaquorum.wire.schema.message import Field, Message, Struct

Decoder = Callable[[memoryview, int], tuple[Any, int]]
DecoderInPieces = Callable[[memoryview, int], Generator[None, None, tuple[Any, int]]]

_BULK_MIN_ITEMS: Final = 3  # below, setting up `iter_unpack` costs more than it saves


class Malformed(Exception):  # noqa: N818 - never leaves `wire`
    """Raised inside a decoder if the bytes are malformed; `explain` names the field."""


def uvarint(data: memoryview, position: int, value: int) -> tuple[int, int]:
    """Return an unsigned varint and the position after it.

    `value` is its first byte, which is above 127 and just before `position`.
    """
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0x7FFFFFFF:
                raise Malformed
            return value, position
    raise Malformed


def skip_tags(data: memoryview, position: int, count: int) -> int:
    """Return the position after a tagged section whose tags are all unknown."""
    if count > 127:
        count, position = uvarint(data, position, count)
    last_tag = -1
    for _ in range(count):
        tag, size = data[position], data[position + 1]
        position += 1
        if tag > 127:
            tag, position = uvarint(data, position, tag)
            size = data[position]
        position += 1
        if size > 127:
            size, position = uvarint(data, position, size)
        if tag <= last_tag:
            raise Malformed
        last_tag = tag
        position += size
    return position


def malformed(cls: type[Message], version: int, position: int) -> WireError:
    """Return an error with the position only, without the cost of `explain` for a long message."""
    return WireError(f"{cls.__name__} v{version}: malformed (near byte {position})")


_RUNTIME: Final[dict[str, Any]] = {
    "Malformed": Malformed,
    "uvarint": uvarint,
    "skip_tags": skip_tags,
    "new": object.__new__,
    "repeat": itertools.repeat,
    "unpack_from": struct.unpack_from,
    "explain": explain,
    "malformed": malformed,
    "FAILURES": (Malformed, struct.error, IndexError),
}

_SIGNATURE: Final = "def decode(data, p):"


def compile_decoder(cls: type[Message], version: int) -> Decoder:
    return _generate(cls, version).function(_SIGNATURE, f"<decode {cls.__name__} v{version}>")


def compile_decoder_in_pieces(cls: type[Message], version: int) -> DecoderInPieces:
    """Return a generator function that yields every few elements and returns a decoder's result.

    Its error for a malformed message has the position, not the field.
    """
    return _generate(cls, version, in_pieces=True).function(
        _SIGNATURE, f"<decode {cls.__name__} v{version} in pieces>"
    )


def decoder_source(cls: type[Message], version: int) -> str:
    """Return the generated source, for debugging."""
    return _generate(cls, version).text(_SIGNATURE)


def _generate(cls: type[Message], version: int, *, in_pieces: bool = False) -> Source:
    source = Source()
    source.scope.update(_RUNTIME, MESSAGE=cls)
    limit = REQUEST_MAX_ELEMENTS if cls.__name__.endswith("Request") else RESPONSE_MAX_ELEMENTS
    source.line("start = p")
    with source.block("try:"):
        source.line("end = len(data)")
        source.line(f"budget = {limit}")
        source.line("m = new(MESSAGE)")
        if in_pieces:
            source.line(f"left = {PIECE_ELEMENTS}")
        _Generator(source, version, version in cls.FLEXIBLE, in_pieces).struct(cls, "m")
        source.line("if p > end: raise Malformed")
        source.line("return m, p")
        if in_pieces:
            source.line("yield")  # never reached: makes the function a generator
    with source.block("except FAILURES:"):
        found = "malformed" if in_pieces else "explain"
        where = "p" if in_pieces else "data, start"
        source.line(f"raise {found}(MESSAGE, {version}, {where}) from None")
    return source


class _Generator:
    def __init__(self, source: Source, version: int, flexible: bool, in_pieces: bool) -> None:
        self.source = source
        self.in_pieces = in_pieces
        self.version = version
        self.flexible = flexible
        self.run: list[tuple[str, str]] = []  # format code and target of pending reads

    def flush(self) -> None:
        """Write the pending reads as one read."""
        width = self.read_run()
        if width:
            self.source.line(f"p += {width}")

    def read_run(self) -> int:
        """Write the pending reads without advancing the position; return their size in bytes."""
        line = self.source.line
        width = sum(WIDTH[code] for code, _ in self.run)
        targets = ", ".join(target for _, target in self.run)
        if [code for code, _ in self.run] == ["B"]:
            line(f"{targets} = data[p]")
        elif self.run:
            unpacker = struct.Struct(">" + "".join(code for code, _ in self.run)).unpack_from
            line(f"{targets}, = {self.source.constant(unpacker, 'read')}(data, p)")
        self.run = []
        return width

    def struct(self, cls: type[Struct], target: str) -> None:
        """Write the code that reads the fields of `target`, an empty instance of `cls`."""
        body, tagged = fields_at(cls, self.version)
        for field in body:
            self.field(field, f"{target}.{field.name}")
        if not self.flexible:
            self.flush()
            self.absent(cls, target)
            return
        count = self.source.name("t")
        self.run.append(("B", count))
        self.flush()
        self.absent(cls, target)
        with self.source.block(f"if {count}:"):
            if tagged:
                self.tags(tagged, count, target)
            else:
                self.source.line(f"p = skip_tags(data, p, {count})")

    def absent(self, cls: type[Struct], target: str) -> None:
        """Write the defaults of tagged fields and of fields that this version does not have."""
        for field in cls.FIELDS:
            if self.version not in field.versions or field.tag is not None:
                default = self.source.literal(field.default)
                self.source.line(f"{target}.{field.name} = {default}")

    def tags(self, tagged: list[Field], count: str, target: str) -> None:
        source = self.source
        last, tag, size, stop = (source.name(stem) for stem in ("last", "tag", "size", "stop"))
        source.line(f"if {count} > 127: {count}, p = uvarint(data, p, {count})")
        source.line(f"{last} = -1")
        with source.block(f"for _ in range({count}):"):
            for variable in (tag, size):
                source.line(f"{variable} = data[p]")
                source.line("p += 1")
                self.continue_uvarint(variable)
            source.line(f"if {tag} <= {last}: raise Malformed")
            source.line(f"{last} = {tag}")
            source.line(f"{stop} = p + {size}")
            source.line(f"if {stop} > end: raise Malformed")
            branch = "if"
            for field in tagged:
                with source.block(f"{branch} {tag} == {field.tag}:"):
                    self.field(field, f"{target}.{field.name}")
                    self.flush()
                branch = "elif"
            source.line(f"else: p = {stop}")
            source.line(f"if p != {stop}: raise Malformed")

    def field(self, field: Field, target: str) -> None:
        nullable = self.version in field.nullable
        if field.kind in FIXED:
            self.run.append((FIXED[field.kind], target))
        elif field.kind == "struct":
            self.nested(item_struct(field), target, nullable)
        elif field.kind == "array":
            self.array(field, target, nullable)
        else:
            self.sized(field.kind, target, nullable)

    def nested(self, cls: type[Struct], target: str, nullable: bool) -> None:
        source = self.source
        nested = source.name("s")
        make = f"{nested} = new({source.constant(cls, cls.__name__)})"
        if not nullable:
            source.line(make)
            self.struct(cls, nested)
            source.line(f"{target} = {nested}")
            return
        presence = source.name("n")
        self.run.append(("b", presence))
        self.flush()
        with source.block(f"if {presence} < 0:"):
            source.line(f"{target} = None")
        with source.block("else:"):
            source.line(make)
            self.struct(cls, nested)
            source.line(f"{target} = {nested}")

    def continue_uvarint(self, variable: str) -> None:
        self.source.line(f"if {variable} > 127: {variable}, p = uvarint(data, p, {variable})")

    def length(self, kind: str) -> str:
        """Write the read of a length; return its variable.

        In a flexible version the variable is the length plus one, and 0 is null.
        """
        length = self.source.name("n")
        code = "B" if self.flexible else "h" if kind == "string" else "i"
        self.run.append((code, length))
        self.flush()
        if self.flexible:
            with self.source.block(f"if {length} > 127:"):
                self.source.line(f"{length}, p = uvarint(data, p, {length})")
                if kind == "string":
                    limit = STRING_MAX_BYTES + 1
                    self.source.line(f"if {length} > {limit}: raise Malformed")
        return length

    def null(self, length: str, target: str, nullable: bool) -> str:
        """Write the branches for null and invalid lengths; return the start of the next branch."""
        source = self.source
        if self.flexible:
            outcome = f"{target} = None" if nullable else "raise Malformed"
            source.line(f"if {length} == 0: {outcome}")
        else:
            with source.block(f"if {length} < 0:"):
                if nullable:
                    source.line(f"if {length} != -1: raise Malformed")
                    source.line(f"{target} = None")
                else:
                    source.line("raise Malformed")
        return "else:"

    def sized(self, kind: str, target: str, nullable: bool) -> None:
        """Write the read of a string, bytes or records."""
        source = self.source
        if kind == "records" and self.flexible:
            self.flexible_records(target, nullable)
            return
        length = self.length(kind)
        with source.block(self.null(length, target, nullable)):
            source.line(f"e = p + {length}{' - 1' if self.flexible else ''}")
            slice_ = {
                "string": "data[p:e].tobytes().decode('utf-8', 'replace')",
                "bytes": "data[p:e].tobytes()",
                "records": "data[p:e]",
            }[kind]
            source.line(f"{target} = {slice_}")
            source.line("p = e")

    def flexible_records(self, target: str, nullable: bool) -> None:
        """Write the read of records, fast for a length of two bytes (128 bytes to 16 KiB).

        At least a tagged section follows records, so the second byte can always be read.
        """
        source = self.source
        length, peek = source.name("n"), source.name("k")
        self.run += [("B", length), ("B", peek)]
        width = self.read_run()  # the last of these bytes is `peek`
        with source.block(f"if {length} > 127 and 0 < {peek} < 128:"):
            source.line(f"e = p + {length} + ({peek} << 7) - {128 + 1 - width}")
            source.line(f"{target} = data[p + {width}:e]")
            source.line("p = e")
        with source.block("else:"):
            source.line(f"p += {width - 1}")
            self.continue_uvarint(length)
            with source.block(self.null(length, target, nullable)):
                source.line(f"e = p + {length} - 1")
                source.line(f"{target} = data[p:e]")
                source.line("p = e")

    def array(self, field: Field, target: str, nullable: bool) -> None:
        source = self.source
        count = self.length("array")
        with source.block(self.null(count, target, nullable)):
            if self.flexible:
                source.line(f"{count} -= 1")
            width = min_item_width(field, self.version, self.flexible)
            source.line(f"if {count} > budget or {count} * {width} > end - p: raise Malformed")
            source.line(f"budget -= {count}")
            if isinstance(field.item, type):
                self.structs(field.item, count, target)
            elif field.item in FIXED:
                self.fixed_items(FIXED[field.item], count, target)
            else:
                self.sized_items(str(field.item), count, target)

    def structs(self, cls: type[Struct], count: str, target: str) -> None:
        source = self.source
        items, item = source.name("items"), source.name("x")
        name = source.constant(cls, cls.__name__)
        if self.in_pieces:
            source.line(f"{target} = {items} = []")
            with source.block(f"for _ in range({count}):"):
                source.may_pause()
                source.line(f"{item} = new({name})")
                source.line(f"{items}.append({item})")
                self.struct(cls, item)
            return
        source.line(
            f"{target} = {items} = [new({name})] if {count} == 1 "
            f"else [*map(new, repeat({name}, {count}))]"
        )
        if is_fixed_width(cls, self.version):
            self.bulk(cls, count, items, item)
        else:
            self.loop(cls, items, item)

    def loop(self, cls: type[Struct], items: str, item: str) -> None:
        with self.source.block(f"for {item} in {items}:"):
            self.struct(cls, item)

    def bulk(self, cls: type[Struct], count: str, items: str, item: str) -> None:
        """Write the read of elements of one width: together, unless an element has tagged fields.

        The first such element has a tag count other than 0 at the position where it would be if
        no element had tagged fields.
        """
        source = self.source
        body, _ = fields_at(cls, self.version)
        codes = [FIXED[field.kind] for field in body]
        targets = [f"{item}.{field.name}" for field in body]
        if self.flexible:
            codes.append("B")
            targets.append("_")
        unpack = struct.Struct(">" + "".join(codes))
        width = unpack.size
        source.line(f"e = p + {count} * {width}")
        condition = f"{count} >= {_BULK_MIN_ITEMS}"
        if self.flexible:
            condition += f" and not any(data[p + {width - 1}:e:{width}].tobytes())"
        with source.block(f"if {condition}:"):
            read = f"{source.constant(unpack.iter_unpack, 'each')}(data[p:e])"
            unpacked = f"for {item}, ({', '.join(targets)},) in zip({items}, {read}):"
            with source.block(unpacked):
                source.line("pass")
                self.absent(cls, item)
            source.line("p = e")
        with source.block("else:"):
            self.loop(cls, items, item)

    def fixed_items(self, code: str, count: str, target: str) -> None:
        width = WIDTH[code]
        if code == "16s" and self.in_pieces:
            items = self.source.name("items")
            self.source.line(f"{target} = {items} = []")
            with self.source.block(f"for i in range(p, p + {count} * 16, 16):"):
                self.source.may_pause()
                self.source.line(f"{items}.append(data[i:i + 16].tobytes())")
        elif code == "16s":
            cut = f"[data[i:i + 16].tobytes() for i in range(p, p + {count} * 16, 16)]"
            self.source.line(f"{target} = {cut}")
        elif self.in_pieces:
            items, stop = self.source.name("items"), self.source.name("stop")
            self.source.line(f"{target} = {items} = []")
            self.source.line(f"{stop} = p + {count} * {width}")
            with self.source.block(f"for i in range(p, {stop}, {PIECE_NUMBERS * width}):"):
                self.source.line(f"{count} = min({PIECE_NUMBERS}, ({stop} - i) // {width})")
                self.source.line(f"{items} += unpack_from('>%d{code}' % {count}, data, i)")
                self.source.line(f"if {count} == {PIECE_NUMBERS}: yield")
            self.source.line(f"p = {stop}")
            return
        else:
            self.source.line(f"{target} = [*unpack_from('>%d{code}' % {count}, data, p)]")
        self.source.line(f"p += {count} * {width}")

    def sized_items(self, kind: str, count: str, target: str) -> None:
        source = self.source
        items, index = source.name("items"), source.name("i")
        source.line(f"{target} = {items} = [None] * {count}")
        with source.block(f"for {index} in range({count}):"):
            if self.in_pieces:
                source.may_pause()
            self.sized(kind, f"{items}[{index}]", nullable=False)
