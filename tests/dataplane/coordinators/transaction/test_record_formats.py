"""Golden bytes of `TransactionLog.keyToBytes` and `valueToBytes` of Apache Kafka 4.3.1."""

from dataclasses import replace
from typing import Any

import pytest

from dataplane.coordinators.transaction.record_formats import (
    MalformedRecordError,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from dataplane.coordinators.transaction.transaction import State, Transaction

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


def test_keys_are_kafkas() -> None:
    assert encode_key("tid").hex() == "00000003746964"
    assert decode_key(encode_key("tid")) == "tid"
    assert decode_key(b"\0\1") is None


@pytest.mark.parametrize("length", range(37))
def test_truncated_values_are_malformed(length: int) -> None:
    with pytest.raises(MalformedRecordError):
        decode_value(bytes.fromhex(GOLDEN[0][2])[:length])
