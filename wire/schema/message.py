"""Protocol messages as declarative tables: one class per message, all its versions in it.

    class FetchRequest(Message, api=1, versions="4-18", flexible="12+"):
        cluster_id: str | None = string("12+", nullable="12+", default=None, tag=0)
        replica_id: int = int32("0-14", default=-1)
        topics: list[FetchTopic] = array(FetchTopic)

Each field is one call: its wire type, the versions that carry it ("0+" when omitted), in which of
them it may be null, its default, and its tag when it travels in the tagged section. Names are
Kafka's in snake case, class names are Kafka's. `array(...)` takes a `Struct` or a wire type
(`array(int32)`). `ignorable` says that a value the chosen version cannot carry is dropped in
silence; without it, encoding a request refuses (a response never does: its sender answers what was
asked).

What a value may be: `Uuid` fields hold 16 bytes (see `wire.primitives.types`), `records` a buffer
or None or, when encoding, a `RecordsHole`. A tagged struct that is absent is None, as building one
for each of a thousand partitions would cost more than all else about them. Fields which a version
does not carry decode to their default. Unknown tagged fields are skipped.

Nothing is compiled here: making a class costs a few microseconds, `__init__` is generated when the
class is first instantiated, codecs when `wire.schema.codec` is first asked for one.
"""

from typing import Any, ClassVar, Final, dataclass_transform

from wire.primitives.frozen import frozen
from wire.primitives.types import ZERO_UUID

LAST_VERSION: Final = 32767


@frozen
class Versions:
    """A range of versions, both ends included; empty when last < first."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __iter__(self) -> Any:
        return iter(range(self.first, self.last + 1))

    @classmethod
    def parse(cls, text: str) -> "Versions":
        """From the protocol guide's notation: "3", "3-13", "9+" or "none"."""
        if text == "none":
            return NO_VERSIONS
        if text.endswith("+"):
            return cls(int(text[:-1]), LAST_VERSION)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))


NO_VERSIONS: Final = Versions(0, -1)


class Field:
    """One row of a table. `name` is filled in by the class that holds it."""

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
        """`may_be_encoded`: items of this array may be given as `item_encoder` made them."""
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
    """The protocol's `bytes`."""
    return Field("bytes", versions, default=default, **spec)


def records(versions: str = "0+", **spec: Any) -> Any:
    """Record batches, opaque here: decoded to a slice of the input, without a copy."""
    return Field("records", versions, default=None, **spec)


def struct(item: "type[Struct]", versions: str = "0+", **spec: Any) -> Any:
    """One nested struct; a default of None unless it is required in every version it is in."""
    default = None if "tag" in spec or "nullable" in spec else item
    return Field("struct", versions, default=default, item=item, **spec)


def array(item: Any, versions: str = "0+", *, default: Any = list, **spec: Any) -> Any:
    """A list; its default is a new empty one, or None where the table says so."""
    if not isinstance(item, type):
        item = item().kind
    return Field("array", versions, default=default, item=item, **spec)


class _Table(type):
    """Makes the class of a table: its fields become slots."""

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
    """A part of a message; a plain mutable value, compared field by field."""

    FIELDS: ClassVar[tuple[Field, ...]]

    def __init__(self, **values: Any) -> None:
        """Every field has a default. The first call replaces this by a compiled one."""
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
    """A whole request or response: `class XRequest(Message, api=.., versions=.., flexible=..)`."""

    API: ClassVar[int]
    VERSIONS: ClassVar[Versions]
    FLEXIBLE: ClassVar[Versions]


_OMITTED: Final = object()


def _compile_init(cls: type[Struct]) -> Any:
    scope: dict[str, Any] = {"OMITTED": _OMITTED}
    parameters, body = [], []
    for field in cls.FIELDS:
        name = field.name
        if isinstance(field.default, type):  # made anew for each instance
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
