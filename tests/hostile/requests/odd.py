"""Requests that the tables allow and no sane client sends: null, doubled, negative, contradictory.

They are drawn from the message tables, so that an API or a field that is new is covered at once.
Numbers come from a `random.Random`: Hypothesis draws its seed, and a failure shows the request.
"""

import math
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from metaquorum.wire.messages.produce import ProduceRequest
from metaquorum.wire.primitives.types import ZERO_UUID
from metaquorum.wire.protocol.apis import Api
from metaquorum.wire.schema.message import Field, Message, Struct
from tests.dataplane.serving import WORLD_BEGAN_MS, batch_of

TOPIC: Final = "topic"
OTHER_TOPIC: Final = "other"
GROUP: Final = "group"
TRANSACTIONAL_ID: Final = "transactional"

_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 16, "uint32": 32}
_NAMES: Final = (
    TOPIC,
    TOPIC,
    TOPIC,
    OTHER_TOPIC,
    GROUP,
    "",
    "missing",
    ".",
    "a b/c",
    "caf\ufffd",
    "n" * 249,
    "n" * 250,
    "n" * 32_000,
    "__consumer_offsets",
    "__transaction_state",
    "1",
    "-1",
    "0",
    "retention.ms",
    "cleanup.policy",
    "message.max.bytes",
    "consumer",
    "range",
    "user",
    "client-id",
    "ip",
    "127.0.0.1",
    "transaction.version",
    "metadata.version",
    "SCRAM-SHA-256",
)
_BLOBS: Final = (b"", b"\0", b"x" * 200, bytes.fromhex("0000000000010005746f70696300000000"))
# Fields of milliseconds that a response may wait for.
_WAITS: Final = (-(1 << 31), -1, 0, 1, 10, 6_000, 60_000, (1 << 31) - 1)


def answered_by_nothing(asked: Message) -> bool:
    """Return whether the protocol has no answer: acks=0, which Kafka closes at an error."""
    return isinstance(asked, ProduceRequest) and asked.acks == 0


class Odd:
    """Draws requests that name what there is: topics, a member of GROUP, a producer."""

    def __init__(
        self, draw: Random, topic_ids: Sequence[bytes], member_id: str, producer_id: int
    ) -> None:
        self._draw = draw
        self._uuids = (ZERO_UUID, *topic_ids, bytes(15) + b"\1", draw.randbytes(16))
        # Values of fields with which a request gets farther than its first check.
        self._known: dict[str, Any] = {
            "name": TOPIC,
            "topic": TOPIC,
            "topic_name": TOPIC,
            "resource_name": TOPIC,
            "resource_type": 2,
            "acks": -1,
            "isolation_level": 0,
            "replication_factor": 1,
            "group_id": GROUP,
            "groups_names": GROUP,
            "groups": GROUP,
            "member_id": member_id,
            "transactional_id": TRANSACTIONAL_ID,
            "v3_and_below_transactional_id": TRANSACTIONAL_ID,
            "transactional_ids": TRANSACTIONAL_ID,
            "producer_id": producer_id,
            "v3_and_below_producer_id": producer_id,
        }

    def request(self, api: Api, version: int) -> Message:
        message: Message = self._struct(api.request, version)
        return message

    def _struct(self, cls: type[Struct], version: int) -> Any:
        fields = [field for field in cls.FIELDS if version in field.versions]
        return cls(**{field.name: self._field(field, version) for field in fields})

    def _field(self, field: Field, version: int) -> Any:
        draw = self._draw
        if version in field.nullable and draw.random() < 0.2:
            return None
        if field.kind == "array":
            return self._array(field, version)
        if field.kind == "struct":
            if field.tag is not None and draw.random() < 0.5:
                return None
            assert isinstance(field.item, type)
            return self._struct(field.item, version)
        if draw.random() < 0.2 and field.default is not None:
            return field.default
        if draw.random() < 0.5 and field.name in self._known:
            return self._known[field.name]
        return self._scalar(field.kind, field.name)

    def _array(self, field: Field, version: int) -> list[Any]:
        item = field.item

        def one() -> Any:
            if isinstance(item, type):
                return self._struct(item, version)
            return self._scalar(str(item), field.name)

        items = [one() for _ in range(self._draw.choice((0, 1, 1, 1, 2, 3)))]
        if items and self._draw.random() < 0.3:
            items.insert(self._draw.randrange(len(items) + 1), self._draw.choice(items))
        return items

    def _scalar(self, kind: str, name: str) -> Any:
        draw = self._draw
        if kind in _BITS:
            if name.endswith("_ms") and kind == "int32":
                return draw.choice(_WAITS)
            return self._integer(kind)
        match kind:
            case "bool":
                return draw.random() < 0.5
            case "float64":
                return draw.choice((0.0, -1.0, 0.5, 1e300, math.inf, -math.inf, math.nan))
            case "uuid":
                return draw.choice(self._uuids)
            case "string":
                return draw.choice(_NAMES)
            case "bytes":
                return draw.choice(_BLOBS)
        assert kind == "records", kind
        batch = bytes(batch_of(b"value", timestamp=WORLD_BEGAN_MS))
        return draw.choice((b"", batch, batch, batch * 2, batch[:-1], b"\0" * 70))

    def _integer(self, kind: str) -> int:
        bits, draw = _BITS[kind], self._draw
        least, most = (
            (0, (1 << bits) - 1) if kind[0] == "u" else (-1 << bits - 1, (1 << bits - 1) - 1)
        )
        if draw.random() < 0.2:
            return draw.choice((least, most, 100, 30_000 if bits > 8 else 30))
        return max(least, draw.choice((-2, -1, -1, 0, 0, 0, 1, 1, 2, 3, 4, 16, 32)))
