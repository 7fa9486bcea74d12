"""msgpack codec for the project's own types, compiled once from their type hints.

    None, bool, int, float,
    str, bytes                      as msgpack has them
    enumeration                     number of the member
    tuple[X, ...], list, Sequence   array
    tuple[X, Y], NamedTuple,
    dataclass, KafkaError           array of the fields; KafkaError's are code and message
    Mapping                         map
    X | None                        nil or X where X is one of the first row or an enumeration; else
                                    an array of nothing or of one X

Trailing fields with their default values are not written, and fields that are missing from the
bytes get their default values: nodes of neighbouring versions understand each other as long as
no node uses fields that only the newer version has. The reader refuses unknown fields, since
ignoring a field would drop a part of the request.

Reading is strict and follows the hints: the reader enters containers only where a hint has one, so
that malformed counts allocate no memory; a count cannot exceed the number of bytes left.

Why this is not msgspec: docs/decisions/022-rpc-codec.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgpack

from metaquorum.wire.primitives.errors import ErrorCode, KafkaError, WireError

T = TypeVar("T")

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
_NO_DEFAULT: Final = object()
_UNPACK_ERRORS: Final = (
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    msgpack.OutOfData,
    msgpack.UnpackException,
)


class _WrongError(Exception):
    """Raised if a value does not match its hint; `at` is the path of the value."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.at = ""

    def within(self, name: str) -> "_WrongError":
        self.at = f".{name}{self.at}"
        return self


class _Reader:
    """Reader of one msgpack item after the other."""

    __slots__ = ("_unpacker", "item", "size_bytes")

    def __init__(self, data: bytes | memoryview) -> None:
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=max(len(data), 1),
            max_str_len=len(data),
            max_bin_len=len(data),
            max_array_len=0,
            max_map_len=0,
            max_ext_len=0,
            unicode_errors="surrogatepass",
        )
        self._unpacker.feed(data)
        self.size_bytes = len(data)
        self.item: Callable[[], Any] = self._unpacker.unpack

    @property
    def left_bytes(self) -> int:
        return self.size_bytes - int(self._unpacker.tell())

    def array_count(self, least: int, most: int | None) -> int:
        """Return the number of items of the array that follows; `most` None means no limit."""
        try:
            count = self._unpacker.read_array_header()
        except ValueError:
            raise _WrongError("is not an array") from None
        if count > self.left_bytes:
            raise _WrongError(f"has {count} items in {self.left_bytes} bytes")
        if count < least or (most is not None and count > most):
            wanted = least if least == most else f"{least} to {most}"
            raise _WrongError(f"has {count} items, expected {wanted}")
        return int(count)

    def map_count(self) -> int:
        try:
            count = self._unpacker.read_map_header()
        except ValueError:
            raise _WrongError("is not a map") from None
        if 2 * count > self.left_bytes:
            raise _WrongError(f"has {count} entries in {self.left_bytes} bytes")
        return int(count)


Write: TypeAlias = Callable[[Any], Any]  # returns a value that msgpack packs; raises TypeError
Read: TypeAlias = Callable[[_Reader], Any]


class _Form(NamedTuple):
    """Functions that write and read values of one type."""

    write: Write
    read: Read
    is_leaf: bool = False


def _read_leaf(reader: _Reader, kind: type, words: str) -> Any:
    value = reader.item()
    if type(value) is not kind:
        raise _WrongError(words)
    return value


def _write_leaf(value: Any, kind: type, words: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} {words}")
    return value


def _leaf(kind: type, words: str) -> _Form:
    return _Form(
        lambda value: _write_leaf(value, kind, words),
        lambda reader: _read_leaf(reader, kind, words),
        is_leaf=True,
    )


def _write_int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError(f"{value} does not fit 64 bits")
    return int(value)  # for a member of an enumeration, its number


def _read_int(reader: _Reader) -> int:
    value = reader.item()
    if type(value) is not int or value > INT64_MAX:
        raise _WrongError("is not an integer of 64 bits")
    return value


_LEAVES: Final[Mapping[Any, _Form]] = {
    int: _Form(_write_int, _read_int, is_leaf=True),
    float: _leaf(float, "is not a float"),
    bool: _leaf(bool, "is not true or false"),
    str: _leaf(str, "is not a string"),
    bytes: _leaf(bytes, "is not bytes"),
    NoneType: _leaf(NoneType, "is not nil"),
}


def _enumeration(kind: type[Enum]) -> _Form:
    members = {member.value: member for member in kind}

    def read(reader: _Reader) -> Enum:
        value = reader.item()
        member = members.get(value) if type(value) is int else None
        if member is None:
            raise _WrongError(f"is not a {kind.__name__}")
        return member

    return _Form(lambda value: kind(value).value, read, is_leaf=True)


def _nullable(form: _Form) -> _Form:
    if form.is_leaf:
        return _nullable_leaf(form)

    def read(reader: _Reader) -> Any:
        return form.read(reader) if reader.array_count(0, 1) else None

    return _Form(lambda value: () if value is None else (form.write(value),), read)


class _Replay:
    """A reader whose next item has been read already."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def item(self) -> Any:
        return self._value


def _nullable_leaf(form: _Form) -> _Form:
    def read(reader: _Reader) -> Any:
        value = reader.item()
        return None if value is None else form.read(_Replay(value))  # type: ignore[arg-type]

    return _Form(lambda value: None if value is None else form.write(value), read, is_leaf=True)


def _items(form: _Form, make: Callable[[Iterable[Any]], Any]) -> _Form:
    write_one, read_one = form.write, form.read

    def read(reader: _Reader) -> Any:
        values: list[Any] = []
        for number in range(reader.array_count(0, None)):
            try:
                values.append(read_one(reader))
            except _WrongError as wrong:
                raise wrong.within(str(number)) from None
        return make(values)

    return _Form(lambda value: [write_one(item) for item in value], read)


def _mapping(key: _Form, value: _Form) -> _Form:
    if not key.is_leaf:
        raise TypeError("keys of mappings must be numbers, strings or bytes")

    def write(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
        return {key.write(name): value.write(item) for name, item in mapping.items()}

    def read(reader: _Reader) -> dict[Any, Any]:
        entries: dict[Any, Any] = {}
        for number in range(reader.map_count()):
            try:
                name = key.read(reader)
                if name in entries:
                    raise _WrongError("is a duplicate key")
                entries[name] = value.read(reader)
            except _WrongError as wrong:
                raise wrong.within(str(number)) from None
        return entries

    return _Form(write, read)


class _FieldForm(NamedTuple):
    name: str
    form: _Form
    default: object  # _NO_DEFAULT: the field is always written


def _struct(
    fields_: Sequence[_FieldForm],
    make: Callable[..., Any],
    values_of: Callable[[Any], Sequence[Any]],
) -> _Form:
    names = [each.name for each in fields_]
    reads = [each.form.read for each in fields_]
    writes = [each.form.write for each in fields_]
    defaults = [each.default for each in fields_]
    least = len(fields_)
    while least and defaults[least - 1] is not _NO_DEFAULT:
        least -= 1

    def write(value: Any) -> list[Any]:
        values = values_of(value)
        count = len(values)
        while count > least and values[count - 1] == defaults[count - 1]:
            count -= 1
        return [writes[number](values[number]) for number in range(count)]

    def read(reader: _Reader) -> Any:
        count = reader.array_count(least, len(reads))
        values = []
        for number in range(count):
            try:
                values.append(reads[number](reader))
            except _WrongError as wrong:
                raise wrong.within(names[number]) from None
        return make(*values)

    return _Form(write, read)


def _kafka_error() -> _Form:
    code = _enumeration(ErrorCode)
    parts = (_FieldForm("code", code, _NO_DEFAULT), _FieldForm("message", _LEAVES[str], ""))

    def values_of(error: Any) -> Sequence[Any]:
        if not isinstance(error, KafkaError):
            raise TypeError(f"{error!r} is not a KafkaError")
        return (error.code, error.message)

    return _struct(parts, KafkaError, values_of)


def _dataclass(kind: Any, hints: Mapping[str, Any]) -> _Form:
    parts = []
    for field in fields(kind):
        default: object = _NO_DEFAULT
        if field.default is not MISSING:
            default = field.default
        elif field.default_factory is not MISSING:
            default = field.default_factory()
        parts.append(_FieldForm(field.name, _form(hints[field.name]), default))
    names = [part.name for part in parts]

    def values_of(value: Any) -> Sequence[Any]:
        if type(value) is not kind:
            raise TypeError(f"{value!r} is not a {kind.__name__}")
        return [getattr(value, name) for name in names]

    return _struct(parts, kind, values_of)


def _named_tuple(kind: Any, hints: Mapping[str, Any]) -> _Form:
    defaults = kind._field_defaults
    parts = [
        _FieldForm(name, _form(hints[name]), defaults.get(name, _NO_DEFAULT))
        for name in kind._fields
    ]
    return _struct(parts, kind, lambda value: kind._make(value))


def _tuple(kinds: Sequence[Any]) -> _Form:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return _items(_form(kinds[0]), tuple)
    parts = [_FieldForm(str(number), _form(kind), _NO_DEFAULT) for number, kind in enumerate(kinds)]

    def values_of(value: Any) -> Sequence[Any]:
        if len(value) != len(parts):
            raise TypeError(f"{value!r} does not have {len(parts)} items")
        return tuple(value)

    return _struct(parts, lambda *values: values, values_of)


def _union(kinds: Sequence[Any]) -> _Form:
    others = [kind for kind in kinds if kind is not NoneType]
    if len(others) != 1 or len(kinds) != 2:
        raise TypeError(f"the only supported union is X | None, not {kinds}")
    return _nullable(_form(others[0]))


def _resolved(kind: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the class and the hints of its fields, with type variables substituted."""
    origin = get_origin(kind) or kind
    known = dict(zip(getattr(origin, "__parameters__", ()), get_args(kind), strict=True))
    hints = get_type_hints(origin)
    return origin, {name: _filled(hint, known) for name, hint in hints.items()}


def _filled(hint: Any, known: Mapping[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return known[hint]
    open_ones = getattr(hint, "__parameters__", ())
    return hint[tuple(known[each] for each in open_ones)] if open_ones else hint


@cache
def _form(kind: Any) -> _Form:
    """Return the form of a hint. Raises TypeError, at import time, for an unsupported hint."""
    if (leaf := _LEAVES.get(kind)) is not None:
        return leaf
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _union(arguments)
    if origin is tuple:
        return _tuple(arguments)
    if origin in (list, Sequence):
        return _items(_form(arguments[0]), list if origin is list else tuple)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_form(arguments[0]), _form(arguments[1]))
    cls = origin or kind
    if cls is KafkaError:
        return _kafka_error()
    if isinstance(cls, type) and issubclass(cls, Enum):
        return _enumeration(cls)
    if is_dataclass(cls):
        return _dataclass(*_resolved(kind))
    if isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _named_tuple(*_resolved(kind))
    raise TypeError(f"{kind!r} cannot be sent")


class Codec(Generic[T]):
    """Encoder and decoder for values of one type."""

    def __init__(self, kind: Any, name: str | None = None) -> None:
        """Compile the codec of the type hint `kind`; `name` is its name in errors."""
        self._name = name or getattr(kind, "__name__", str(kind))
        self._form = _form(kind)

    def encode(self, value: T) -> bytes:
        """Return the bytes of `value`. Raises TypeError or ValueError if its type is wrong."""
        packed = msgpack.packb(self._form.write(value), unicode_errors="surrogatepass")
        assert isinstance(packed, bytes)
        return packed

    def decode(self, data: bytes | memoryview) -> T:
        """Return the value. Raises WireError, naming the field, unless `data` is one value."""
        reader = _Reader(data)
        try:
            value: T = self._form.read(reader)
            left_bytes = reader.left_bytes
        except _WrongError as wrong:
            raise WireError(f"{self._name}{wrong.at}: {wrong.what}") from None
        except _UNPACK_ERRORS as error:
            raise WireError(f"{self._name}: not msgpack of that type ({error!r})") from None
        if left_bytes:
            raise WireError(f"{self._name}: {left_bytes} bytes left after the value")
        return value
