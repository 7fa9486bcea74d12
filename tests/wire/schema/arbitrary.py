"""Arbitrary messages of any table, for Hypothesis."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

import metaquorum.wire.messages
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.schema.message import Field, Message, Struct


def _tables() -> Iterator[type[Message]]:
    """Return the messages of all modules, also those of APIs that no node serves."""
    for module in pkgutil.iter_modules(metaquorum.wire.messages.__path__):
        for value in vars(
            importlib.import_module(f"metaquorum.wire.messages.{module.name}")
        ).values():
            if isinstance(value, type) and issubclass(value, Message) and value is not Message:
                yield value


CASES = [
    (cls, version)
    for cls in sorted(_tables(), key=lambda cls: (cls.API, cls.__name__))
    for version in cls.VERSIONS
]


def form(cls: type[Struct], version: int) -> tuple[Any, ...]:
    """Return all that a table says about a version: the fields, and what each of them may be."""
    return tuple(
        (
            field.name,
            field.kind,
            form(field.item, version) if isinstance(field.item, type) else field.item,
            version in field.nullable,
            field.tag,
            repr(field.default),
        )
        for field in cls.FIELDS
        if version in field.versions
    )


def has_new_form(cls: type[Message], version: int) -> bool:
    """Whether the table has another form at this version than at the one before."""
    if version - 1 not in cls.VERSIONS or (version in cls.FLEXIBLE) != (
        version - 1 in cls.FLEXIBLE
    ):
        return True
    return form(cls, version) != form(cls, version - 1)


# Versions of one form have the same codec but for the number in errors (`test_codec` compares the
# sources), so arbitrary messages of the first of them show as much as those of all.
FORMS = [case for case in CASES if has_new_form(*case)]


def case_id(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else f"v{value}"


_INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_UNSIGNED = {"uint16": 16, "uint32": 32}
_BLOBS = st.one_of(st.binary(max_size=8), st.binary(min_size=120, max_size=140))


def _scalar(kind: str) -> st.SearchStrategy[Any]:
    if kind in _INTEGERS:
        bits = _INTEGERS[kind]
        return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
    if kind in _UNSIGNED:
        return st.integers(0, (1 << _UNSIGNED[kind]) - 1)
    return {
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False),
        "uuid": st.one_of(st.just(bytes(16)), st.binary(min_size=16, max_size=16)),
        "string": st.one_of(st.text(max_size=6), st.just("n" * 127), st.just("é" * 70)),
        "bytes": _BLOBS,
        "records": st.one_of(_BLOBS, st.just(b"r" * 20_000)),
    }[kind]


# Fields that kio decodes as a datetime, and as a timedelta.
_TIMES = (
    "transaction_start_time_ms",
    "issue_timestamp_ms",
    "expiry_timestamp_ms",
    "max_timestamp_ms",
)
_DURATIONS = (
    "session_lifetime_ms",
    "retention_time_ms",
    "max_lifetime_ms",
    "renew_period_ms",
    "expiry_time_period_ms",
)


def _value(field: Field, version: int) -> st.SearchStrategy[Any]:
    if field.name in ("error_code", "partition_error_code"):
        return st.sampled_from(ErrorCode).map(int)
    if field.name == "log_append_time_ms":  # kio decodes these fields as a datetime
        return st.one_of(st.just(-1), st.integers(0, 1 << 42))
    if field.name in _TIMES:
        return st.integers(0, 1 << 42)
    if field.name in _DURATIONS:  # kio decodes these fields as a timedelta, which has limits
        return st.integers(-(1 << 42), 1 << 42)
    if field.kind == "array":
        item = field.item
        element = structs(item, version) if isinstance(item, type) else _scalar(str(item))
        return st.lists(element, max_size=4)
    if field.kind == "struct":
        assert isinstance(field.item, type)
        return structs(field.item, version)
    return _scalar(field.kind)


def _field(field: Field, version: int) -> st.SearchStrategy[Any]:
    value = _value(field, version)
    if field.default is None and field.kind == "struct" and field.tag is not None:
        assert isinstance(field.item, type)
        default = field.item()
        # A tagged struct with only default values is encoded as absent.
        value = value.map(lambda made: None if made == default else made)
        return st.one_of(st.none(), value)
    return st.one_of(st.none(), value) if version in field.nullable else value


def structs(cls: type[Struct], version: int) -> st.SearchStrategy[Any]:
    present = {f.name: _field(f, version) for f in cls.FIELDS if version in f.versions}
    return st.builds(cls, **present)


def messages(cls: type[Message], version: int) -> st.SearchStrategy[Any]:
    """Generate messages as after a decode: fields that the version does not have are defaults."""
    return structs(cls, version)
