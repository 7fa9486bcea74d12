"""Protocol messages as declarative tables: one class per message for all its versions.

    class FetchRequest(Message, api=1, versions="4-18", flexible="12+"):
        cluster_id: str | None = string("12+", nullable="12+", default=None, tag=0)
        replica_id: int = int32("0-14", default=-1)
        topics: list[FetchTopic] = array(FetchTopic)

A field is one call: wire type, the versions that have the field (default "0+"), the versions in
which it may be null, its default, and its tag if it is in the tagged section. Field names are
Kafka's in snake case, class names are Kafka's. `array(...)` takes a `Struct` or a wire type
(`array(int32)`). If a version does not have an `ignorable` field, its value is dropped silently;
for other fields, encoding a request raises WireError. Encoding a response always drops the value,
because the client chose the version.

Values: a `Uuid` field holds 16 bytes (see `metaquorum.wire.primitives.types`); `records` holds a
buffer, None or, for encoding, a `RecordsHole`. An absent tagged struct is None, because building
one for each of a thousand partitions would take longer than the rest of their decoding. Fields that
a version does not have decode to their default. Unknown tagged fields are skipped.

No code is compiled here: defining a class takes a few microseconds. `__init__` is generated for the
first instance, and codecs at their first use in `metaquorum.wire.schema.codec`.
"""

from typing import Any, ClassVar, Final, dataclass_transform

from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.primitives.types import ZERO_UUID

LAST_VERSION: Final = 32767


@frozen
class Versions:
    """A range of versions, both ends included; empty if last < first."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __iter__(self) -> Any:
        return iter(range(self.first, self.last + 1))

    @classmethod
    def parse(cls, text: str) -> "Versions":
        """Parse the notation of the protocol guide: "3", "3-13", "9+" or "none"."""
        if text == "none":
            return NO_VERSIONS
        if text.endswith("+"):
            return cls(int(text[:-1]), LAST_VERSION)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))


NO_VERSIONS: Final = Versions(0, -1)


class Field:
    """One row of a table. The class that has the field sets `name`."""

    __slots__ = (
        "default",
        "ignorable",
        "item",
        "kind",
        "may_be_encoded",
        "name",
        "nullable",
        "tag",
        "versions",
    )

    def __init__(
        self,
        kind: str,
        versions: str,
        *,
        default: Any,
        nullable: str = "none",
        tag: int | None = None,
        ignorable: bool = False,
        item: "type[Struct] | str | None" = None,
        may_be_encoded: bool = False,
    ) -> None:
        """Create a field. `may_be_encoded`: its array accepts items encoded by `item_encoder`."""
        self.name = ""
        self.kind = kind
        self.versions = Versions.parse(versions)
        self.nullable = Versions.parse(nullable)
        self.default = default
        self.tag = tag
        self.ignorable = ignorable
        self.item = item
        self.may_be_encoded = may_be_encoded


def boolean(versions: str = "0+", *, default: bool = False, **spec: Any) -> Any:
    return Field("bool", versions, default=default, **spec)


def int8(versions: str = "0+", *, default: int = 0, **spec: Any) -> Any:
    return Field("int8", versions, default=default, **spec)


def int16(versions: str = "0+", *, default: int = 0, **spec: Any) -> Any:
    return Field("int16", versions, default=default, **spec)


def uint16(versions: str = "0+", *, default: int = 0, **spec: Any) -> Any:
    return Field("uint16", versions, default=default, **spec)


def int32(versions: str = "0+", *, default: int = 0, **spec: Any) -> Any:
    return Field("int32", versions, default=default, **spec)


def int64(versions: str = "0+", *, default: int = 0, **spec: Any) -> Any:
    return Field("int64", versions, default=default, **spec)


def float64(versions: str = "0+", *, default: float = 0.0, **spec: Any) -> Any:
    return Field("float64", versions, default=default, **spec)


def uuid(versions: str = "0+", *, default: bytes = ZERO_UUID, **spec: Any) -> Any:
    return Field("uuid", versions, default=default, **spec)


def string(versions: str = "0+", *, default: str | None = "", **spec: Any) -> Any:
    return Field("string", versions, default=default, **spec)


def blob(versions: str = "0+", *, default: bytes | None = b"", **spec: Any) -> Any:
    """Declare a field of the protocol's type `bytes`."""
    return Field("bytes", versions, default=default, **spec)


def records(versions: str = "0+", **spec: Any) -> Any:
    """Declare a field of record batches, which decodes to a slice of the input without a copy."""
    return Field("records", versions, default=None, **spec)


def struct(item: "type[Struct]", versions: str = "0+", **spec: Any) -> Any:
    """Declare a nested struct. Its default is None if it is tagged or nullable."""
    default = None if "tag" in spec or "nullable" in spec else item
    return Field("struct", versions, default=default, item=item, **spec)


def array(item: Any, versions: str = "0+", *, default: Any = list, **spec: Any) -> Any:
    """Declare an array. Its default is a new empty list, or None if `default` is None."""
    if not isinstance(item, type):
        item = item().kind
    return Field("array", versions, default=default, item=item, **spec)


class _Table(type):
    """Metaclass of tables: makes the fields slots."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api: int = -1,
        versions: str = "none",
        flexible: str = "none",
    ) -> "_Table":
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        for key, field in fields.items():
            field.name = key
            del namespace[key]
        namespace["__slots__"] = tuple(fields)
        namespace["FIELDS"] = tuple(fields.values())
        if versions != "none":
            namespace["API"] = api
            namespace["VERSIONS"] = Versions.parse(versions)
            namespace["FLEXIBLE"] = Versions.parse(flexible)
        return super().__new__(mcs, name, bases, namespace)

    def __init__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **table: Any
    ) -> None:
        super().__init__(name, bases, namespace)


@dataclass_transform(kw_only_default=True)
class Struct(metaclass=_Table):
    """A part of a message: a mutable value, compared field by field."""

    FIELDS: ClassVar[tuple[Field, ...]]

    def __init__(self, **values: Any) -> None:
        """Set the fields; each has a default. The first call replaces this by a compiled method."""
        cls = type(self)
        cls.__init__ = _compile_init(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, f.name) == getattr(other, f.name) for f in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in self.FIELDS)
        return f"{type(self).__name__}({values})"


class Message(Struct):
    """A request or response: `class XRequest(Message, api=.., versions=.., flexible=..)`."""

    API: ClassVar[int]
    VERSIONS: ClassVar[Versions]
    FLEXIBLE: ClassVar[Versions]


_OMITTED: Final = object()


def _compile_init(cls: type[Struct]) -> Any:
    scope: dict[str, Any] = {"OMITTED": _OMITTED}
    parameters, body = [], []
    for field in cls.FIELDS:
        name = field.name
        if isinstance(field.default, type):  # a new object for each instance
            scope[f"new_{name}"] = field.default
            parameters.append(f"{name}=OMITTED")
            body.append(f"self.{name} = new_{name}() if {name} is OMITTED else {name}")
        else:
            scope[f"default_{name}"] = field.default
            parameters.append(f"{name}=default_{name}")
            body.append(f"self.{name} = {name}")
    arguments = f"self, *, {', '.join(parameters)}" if parameters else "self"
    source = f"def __init__({arguments}):\n  " + "\n  ".join(body or ["pass"])
    exec(compile(source, f"<init of {cls.__name__}>", "exec"), scope)  # noqa: S102 - our own table
    return scope["__init__"]
