"""Golden bytes of `TransactionLog.keyToBytes` and `valueToBytes` of Apache Kafka 4.3.1."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.coordinators.transaction.record_formats import (
    MalformedRecordError,
    PartitionsSchema,
    TransactionLogValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from metaquorum.dataplane.coordinators.transaction.transaction import State, Transaction
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.schema import codec

EMPTY = Transaction(
    producer_id=1000,
    previous_producer_id=999,
    next_producer_id=1001,
    producer_epoch=7,
    last_producer_epoch=6,
    timeout_ms=60_000,
    state=State.EMPTY,
    started_ms=5,
    updated_ms=6,
)
PREPARED = replace(EMPTY, state=State.PREPARE_COMMIT, partitions=frozenset({("t", 1)}))
_TAGS = "03000800000000000003e7010800000000000003e9020200"
GOLDEN = [
    (EMPTY, 0, "000000000000000003e800070000ea6000ffffffff00000000000000060000000000000005"),
    (
        PREPARED,
        0,
        "000000000000000003e800070000ea60020000000100017400000001000000010000000000000006"
        "0000000000000005",
    ),
    (EMPTY, 2, f"000100000000000003e800070000ea60000000000000000000060000000000000005{_TAGS}02"),
    (
        PREPARED,
        1,
        "000100000000000003e800070000ea60020202740200000001000000000000000006000000000000000"
        f"5{_TAGS}01",
    ),
]


@pytest.mark.parametrize(("transaction", "level", "golden"), GOLDEN)
def test_values_are_kafkas(transaction: Transaction, level: int, golden: str) -> None:
    transaction = replace(transaction, client_version=level)
    version = min(level, 1)
    assert encode_value(transaction, version).hex() == golden
    decoded = decode_value(bytes.fromhex(golden))
    lost: dict[str, Any] = {"last_producer_epoch": -1}
    if not version:
        lost |= {"previous_producer_id": -1, "next_producer_id": -1, "client_version": 0}
    assert decoded == replace(transaction, **lost)


_IDS = st.sampled_from((-1, 0, 7, (1 << 63) - 1))
_STATES = [state for state in State if state.number < 6]
_PLACES = st.frozensets(
    st.tuples(st.sampled_from(("t", "é", "u" * 200)), st.integers(0, 300)), max_size=150
)


@given(
    version=st.sampled_from((0, 1)),
    transaction=st.builds(
        Transaction,
        producer_id=_IDS,
        producer_epoch=st.integers(-1, 32_767),
        timeout_ms=st.integers(0, (1 << 31) - 1),
        updated_ms=_IDS,
        state=st.sampled_from(_STATES),
        previous_producer_id=_IDS,
        next_producer_id=_IDS,
        partitions=_PLACES,
        started_ms=_IDS,
        client_version=st.integers(0, 2),
    ),
)
def test_values_are_those_of_the_table(version: int, transaction: Transaction) -> None:
    topics = [
        PartitionsSchema(topic=topic, partition_ids=indexes)
        for topic, indexes in transaction.partitions_by_topic().items()
    ]
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state.number,
        transaction_partitions=None if transaction.state is State.EMPTY else topics,
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.client_version,
    )
    by_table = version.to_bytes(2, "big") + codec.encode(value, version)
    assert encode_value(transaction, version) == by_table


def test_too_long_name_of_a_topic_is_refused() -> None:
    transaction = replace(PREPARED, partitions=frozenset({("t" * 32_768, 0)}))
    with pytest.raises(WireError):
        encode_value(transaction, 1)


def test_keys_are_kafkas() -> None:
    assert encode_key("tid").hex() == "00000003746964"
    assert decode_key(encode_key("tid")) == "tid"
    assert decode_key(b"\0\1") is None


@pytest.mark.parametrize("length", range(37))
def test_truncated_values_are_malformed(length: int) -> None:
    with pytest.raises(MalformedRecordError):
        decode_value(bytes.fromhex(GOLDEN[0][2])[:length])
