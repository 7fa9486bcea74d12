"""Kafka's formats of the records in `__transaction_state`: bytes to values, and back.

A key is the version of its format, 0, and the transactional id. A value begins with the version of
its own format:

    0    every field but the tagged ones
    1    flexible: compact strings and arrays, and tagged fields. Written from transaction.version 1
         on, and for clients of version 2: Kafka writes 0 for them once the level is lowered to 0,
         and forgets their version and their next producer id

The partitions are null in a record of state Empty. Fields with unknown tags are skipped (KIP-915).
The epoch before the last bump is not written, as in Kafka: a client's retry of InitProducerId with
that epoch fails after another worker has loaded the record.

Source: TransactionLogKey.json and TransactionLogValue.json of Apache Kafka 4.3.1; KIP-890 has the
tagged fields.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct as Layout
from struct import error as LayoutError  # noqa: N812
from typing import Final

from metaquorum.dataplane.coordinators.transaction.transaction import (
    EMPTY,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Place,
    State,
    Transaction,
    by_topic,
)
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.schema import codec
from metaquorum.wire.schema.message import Message, Struct, array, int8, int16, int32, int64, string

KEY_VERSION: Final = 0
HIGHEST_VALUE_VERSION: Final = 1
# Longest transactional id in bytes of UTF-8: the key has 16 bits for its length.
MAX_ID_BYTES: Final = 32_767
MAX_NAME_BYTES: Final = 32_767

_INT16: Final = Layout(">h")
_KEY_HEAD: Final = Layout(">hh")
# Partitions of transactions whose encoding is remembered: two of the three records of a transaction
# have the same ones, and so have the next transactions of most clients.
_REMEMBERED_PARTITIONS: Final = 64
_REMEMBERED: Final = 256
# Version of the value, producer id and epoch, timeout and state; the two times.
_pack_value_head: Final = Layout(">hqhib").pack
_pack_times: Final = Layout(">qq").pack
# Tag, size and value of the tagged fields.
_pack_tagged_int64: Final = Layout(">bbq").pack
_pack_tagged_int16: Final = Layout(">bbh").pack
_NULL_PARTITIONS: Final = (b"\xff\xff\xff\xff", b"\0")  # by the version of the value


class MalformedRecordError(ValueError):
    """Raised if a record makes no sense or has a newer version; the message says what is wrong."""


class PartitionsSchema(Struct):
    topic: str = string()
    partition_ids: list[int] = array(int32)


class TransactionLogValue(Message, api=-1, versions="0-1", flexible="1+"):
    producer_id: int = int64()
    previous_producer_id: int = int64("1+", tag=0, default=-1, ignorable=True)
    next_producer_id: int = int64("1+", tag=1, default=-1, ignorable=True)
    producer_epoch: int = int16()
    next_producer_epoch: int = int16("1+", tag=3, default=-1, ignorable=True)
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable="0+")
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16("1+", tag=2, default=0, ignorable=True)


def encode_key(transactional_id: str) -> bytes:
    """Return the bytes of a key. Raises ValueError if the id is too long."""
    encoded = transactional_id.encode()
    if len(encoded) > MAX_ID_BYTES:
        raise ValueError(f"a transactional id of {len(encoded)} bytes, more than {MAX_ID_BYTES}")
    return _KEY_HEAD.pack(KEY_VERSION, len(encoded)) + encoded


def decode_key(key: bytes) -> str | None:
    """Return the transactional id, None for a record of another kind. Raises MalformedRecordError.

    Kafka may add kinds of records, which it numbers by the versions of their keys.
    """
    try:
        version, size = _INT16.unpack_from(key)[0], -1
        if version != KEY_VERSION:
            return None
        size = _INT16.unpack_from(key, 2)[0]
        if size != len(key) - 4:
            raise ValueError(f"a length of {size} in {len(key)} bytes")
        return str(key[4:], "utf-8")
    except (LayoutError, ValueError) as error:
        raise MalformedRecordError(f"the key is malformed: {error}") from error


def encode_value(transaction: Transaction, version: int) -> bytes:
    """Return the bytes of a value in one version. Raises WireError if a topic's name is too long.

    The same as `codec.encode` of a `TransactionLogValue`, in a third of the time: each transaction
    writes three of them.
    """
    if transaction.state is EMPTY:
        partitions = _NULL_PARTITIONS[version]
    elif len(transaction.partitions) > _REMEMBERED_PARTITIONS:
        partitions = _encode_partitions(transaction.partitions, version)
    else:
        partitions = _remembered_partitions(transaction.partitions, version)
    value = (
        _pack_value_head(
            version,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.timeout_ms,
            transaction.state.number,
        )
        + partitions
        + _pack_times(transaction.updated_ms, transaction.started_ms)
    )
    return value + _encode_tagged(transaction) if version else value


def _encode_partitions(places: frozenset[Place], version: int) -> bytes:
    topics = by_topic(places)
    parts = [_encode_count(len(topics), version)]
    for topic, indexes in topics.items():
        name = topic.encode()
        if len(name) > MAX_NAME_BYTES:
            raise WireError(f"a topic's name of {len(name)} bytes, more than {MAX_NAME_BYTES}")
        parts += (
            _encode_count(len(name), version) if version else _INT16.pack(len(name)),
            name,
            _encode_count(len(indexes), version),
            Layout(f">{len(indexes)}i").pack(*indexes),
        )
        if version:
            parts.append(b"\0")  # no tagged fields
    return b"".join(parts)


_remembered_partitions = lru_cache(_REMEMBERED)(_encode_partitions)


def _encode_count(count: int, version: int) -> bytes:
    """Return the count of an array: an int32, or in version 1 a varint that is larger by one."""
    if not version:
        return count.to_bytes(4, "big")
    count += 1
    encoded = bytearray()
    while count > 0x7F:
        encoded.append(count & 0x7F | 0x80)
        count >>= 7
    encoded.append(count)
    return bytes(encoded)


def _encode_tagged(transaction: Transaction) -> bytes:
    """Return the tagged fields that differ from their defaults."""
    count, tagged = 0, b""
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        count += 1
        tagged = _pack_tagged_int64(0, 8, transaction.previous_producer_id)
    if transaction.next_producer_id != NO_PRODUCER_ID:
        count += 1
        tagged += _pack_tagged_int64(1, 8, transaction.next_producer_id)
    if transaction.client_version:
        count += 1
        tagged += _pack_tagged_int16(2, 2, transaction.client_version)
    return bytes((count,)) + tagged


def decode_value(value: bytes) -> Transaction:
    """Return the transaction. Raises MalformedRecordError."""
    try:
        version = _INT16.unpack_from(value)[0]
        if not 0 <= version <= HIGHEST_VALUE_VERSION:
            raise MalformedRecordError(f"version {version} is not supported")
        decoded = codec.decode(TransactionLogValue, version, memoryview(value)[2:])
        state = State.of_number(decoded.transaction_status)
    except (LayoutError, WireError, ValueError) as error:
        raise MalformedRecordError(f"the value of a transaction is malformed: {error}") from error
    partitions: frozenset[tuple[str, int]] = frozenset()
    if state is not EMPTY:
        partitions = frozenset(
            (each.topic, index)
            for each in decoded.transaction_partitions or ()
            for index in each.partition_ids
        )
    return Transaction(
        producer_id=decoded.producer_id,
        previous_producer_id=decoded.previous_producer_id,
        next_producer_id=decoded.next_producer_id if version else NO_PRODUCER_ID,
        producer_epoch=decoded.producer_epoch,
        last_producer_epoch=NO_EPOCH,
        timeout_ms=decoded.transaction_timeout_ms,
        state=state,
        partitions=partitions,
        started_ms=decoded.transaction_start_timestamp_ms,
        updated_ms=decoded.transaction_last_update_timestamp_ms,
        client_version=decoded.client_transaction_version,
    )
