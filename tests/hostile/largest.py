"""Requests of the maximum valid size for every supported API, made from the message tables.

For each array of a request: one request with as many elements as the decoder allows, either all
equal and naming something that exists, or all different and mostly naming nothing. For each array
within an array, also one with different elements in which the arrays of both levels are long.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from metaquorum.wire.protocol.apis import Api
from metaquorum.wire.protocol.headers import encode_request
from metaquorum.wire.schema.compiling import REQUEST_MAX_ELEMENTS
from metaquorum.wire.schema.message import Field, Struct

TOPIC: Final = "t"
PARTITIONS: Final = 20
# Values by field name for which the node executes the whole request, unlike zero or empty values.
_HINTS: Final[dict[str, Any]] = {
    "acks": -1,
    "timeout_ms": 5000,
    "max_bytes": 1 << 20,
    "min_bytes": 1,
    "partition_max_bytes": 1 << 20,
    "session_epoch": -1,
    "resource_type": 2,
    "timestamp": -1,
    "current_leader_epoch": -1,
    "leader_epoch": 0,
    "last_fetched_epoch": -1,
    "replica_id": -1,
    "num_partitions": 1,
    "replication_factor": 1,
    "response_partition_limit": 2000,
    "entity_type": "user",
    "key": "producer_byte_rate",
    "value": "1000",
    "mechanism": 1,
    "iterations": 4096,
    "count": 30,
    "feature": "metadata.version",
    "allow_auto_topic_creation": False,
    "include_synonyms": True,
    "records": b"",
    "group_id": "g",
    "generation_id_or_member_epoch": -1,
}
# Names: a constant if all elements are equal, otherwise with a number.
_NAMES: Final = frozenset(
    ("topic", "name", "topic_name", "topics", "topic_names", "resource_name", "entity_name")
)
_INDEXES: Final = frozenset(("partition", "partition_index", "index", "partitions"))


@dataclass(frozen=True, slots=True)
class Largest:
    """One request of the maximum size."""

    api: Api
    version: int
    path: str  # path to the long array
    lengths: tuple[int, ...]  # one for each array on the path
    is_same: bool
    frame: bytes

    def __str__(self) -> str:
        kind = "same" if self.is_same else "other"
        lengths = " x ".join(map(str, self.lengths))
        return f"{self.api.name} v{self.version}, {self.path}: {lengths} {kind}"


def arrays_of(cls: type[Struct], version: int, path: str = "") -> Iterator[tuple[str, ...]]:
    """Return the paths to all arrays in a struct of that version."""
    for field in cls.FIELDS:
        if version not in field.versions or field.item is None:
            continue
        if field.kind == "array":
            yield (field.name,)
        if isinstance(field.item, type):
            for rest in arrays_of(field.item, version):
                yield (field.name, *rest)


def largest_of(api: Api, version: int, most: int = REQUEST_MAX_ELEMENTS) -> Iterator[Largest]:
    """Return requests with `most` elements, slightly fewer for one array in others."""
    for way in arrays_of(api.request, version):
        fields = _fields_on(api.request, way)
        depth = sum(field.kind == "array" for field in fields)
        inner = (1,) * (depth - 1)
        room = most - 2 * len(way)
        longest = (*inner, room // _elements_of(fields[-1], version))
        forms = [(longest, True), (longest, False)]
        if inner:
            # Half as many elements take half the time, and are too many for a slice.
            forms.append(((_length_of_all(fields, version, room // 2),) * depth, False))
        for lengths, is_same in forms:
            message = api.request()
            _fill(message, version, 0)
            _lengthen(message, version, way, lengths, is_same)
            frame = encode_request(api.key, version, 7, "largest", message)
            yield Largest(api, version, ".".join(way), lengths, is_same, frame)


def without_inner_rows(api: Api, version: int, most: int = REQUEST_MAX_ELEMENTS) -> Largest:
    """Return a request with `most` different elements, all of them rows without rows of their own.

    For an API whose request has arrays within its first array.
    """
    name = next(way[0] for way in arrays_of(api.request, version) if len(way) > 1)
    message = api.request()
    _fill(message, version, 0)
    _lengthen(message, version, (name,), (most - len(api.request.FIELDS),), is_same=False)
    for row in getattr(message, name):
        for field in type(row).FIELDS:
            if field.kind == "array" and version in field.versions:
                setattr(row, field.name, [])
    frame = encode_request(api.key, version, 7, "largest", message)
    return Largest(api, version, name, (len(getattr(message, name)), 0), False, frame)


def fetch_of(
    indexes: Iterable[int],
    session_id: int = 0,
    session_epoch: int = 0,
    *,
    forgotten: Iterable[int] = (),
    isolation_level: int = 0,
) -> FetchRequest:
    """Return a fetch of a session that adds or removes partitions of TOPIC."""
    asked = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
        for index in indexes
    ]
    gone = list(forgotten)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic=TOPIC, partitions=asked)] if asked else [],
        forgotten_topics_data=[ForgottenTopic(topic=TOPIC, partitions=gone)] if gone else [],
    )


def _lengthen(
    holder: Struct, version: int, way: tuple[str, ...], lengths: tuple[int, ...], is_same: bool
) -> None:
    """Give the arrays on the path these lengths."""
    field = _field(type(holder), way[0])
    if field.kind == "array":
        length, *rest = lengths
        # Equal elements are one object, which is encoded as often.
        made = [_item(field, version, n) for n in range(1 if is_same else length)]
        setattr(holder, way[0], made * length if is_same else made)
    else:
        rest, made = list(lengths), [getattr(holder, way[0])]
    if len(way) > 1:
        for item in made:
            _lengthen(item, version, way[1:], tuple(rest), is_same)


def _field(cls: type[Struct], name: str) -> Field:
    return next(field for field in cls.FIELDS if field.name == name)


def _fields_on(cls: type[Struct], way: tuple[str, ...]) -> list[Field]:
    fields: list[Field] = []
    for name in way:
        fields.append(_field(cls, name))
        item = fields[-1].item
        cls = item if isinstance(item, type) else Struct
    return fields


def _elements_of(field: Field, version: int) -> int:
    """Return 1 and the number of elements in the arrays of one item, with one element each."""
    is_struct = isinstance(field.item, type)
    return 1 + (sum(1 for _ in arrays_of(field.item, version)) if is_struct else 0)


def _length_of_all(fields: list[Field], version: int, most: int) -> int:
    """Return the length with which all arrays among `fields` together have `most` elements."""
    arrays = [field for field in fields if field.kind == "array"]

    def total(length: int) -> int:
        elements = 0
        for field in reversed(arrays):
            elements = length * (_elements_of(field, version) + elements)
        return elements

    return next(length for length in count(1) if total(length + 1) > most)


def _fill(struct: Struct, version: int, number: int) -> None:
    for field in type(struct).FIELDS:
        if version not in field.versions:
            continue
        if field.kind == "array":
            setattr(struct, field.name, [_item(field, version, number)])
        elif field.kind == "struct":
            if field.tag is None and isinstance(field.item, type):
                inner = field.item()
                _fill(inner, version, number)
                setattr(struct, field.name, None if version in field.nullable else inner)
        else:
            setattr(struct, field.name, _value(field.name, field.kind, number, field.default))


def _item(field: Field, version: int, number: int) -> Any:
    if isinstance(field.item, type):
        item = field.item()
        _fill(item, version, number)
        return item
    return _value(field.name, str(field.item), number, None)


def _value(name: str, kind: str, number: int, default: Any) -> Any:
    if kind == "string" and name in _NAMES:
        return f"{TOPIC}{number}" if number else TOPIC
    if kind == "int32" and name in _INDEXES:
        return number
    hint = _HINTS.get(name)
    if kind == "string":
        return hint if isinstance(hint, str) else f"x{number}"
    if kind == "bytes":
        return b"x" * 32
    if kind == "records":
        return b""
    if kind == "uuid":
        return number.to_bytes(16, "big")
    if kind == "bool":
        return bool(hint)
    if kind == "float64":
        return 1000.0
    if isinstance(hint, int):
        return hint
    return default or 0
