"""Verifications of producers in one log: what ends them, and what may rely on them."""

import pytest

from dataplane.log.segments.verification import (
    FORGOTTEN_AFTER_MS,
    MAX_VERIFICATIONS,
    NOT_REQUIRED,
    Verification,
    Verifications,
)
from tests.dataplane.serving import batch_of
from wire.primitives.errors import ErrorCode, KafkaError
from wire.records.records import BatchHeader, parse_header

PRODUCER = 7


def header(sequence: int, epoch: int = 0) -> BatchHeader:
    return parse_header(
        batch_of(
            b"x",
            producer_id=PRODUCER,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
    )


def refusal(table: Verifications, one: BatchHeader, given: Verification | None) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        table.check(one, given)
    return refused.value.code


def test_only_the_verification_in_progress_counts() -> None:
    table = Verifications()
    first = table.begin(PRODUCER, 0, 0, 0)
    assert table.begin(PRODUCER, 0, 1, 0) is first
    table.check(header(0), first)
    assert refusal(table, header(0), None) is ErrorCode.INVALID_TXN_STATE
    table.end(PRODUCER)
    assert refusal(table, header(0), first) is ErrorCode.INVALID_TXN_STATE
    second = table.begin(PRODUCER, 0, 0, 0)
    assert refusal(table, header(0), first) is ErrorCode.INVALID_TXN_STATE
    newer = table.begin(PRODUCER, 1, 0, 0)
    assert refusal(table, header(0), second) is ErrorCode.INVALID_TXN_STATE
    table.check(header(0, epoch=1), newer)
    table.check(header(5), NOT_REQUIRED)


def test_the_earliest_batch_that_asked_is_appended_first() -> None:
    table = Verifications()
    given = table.begin(PRODUCER, 0, 3, 0)
    table.begin(PRODUCER, 0, 2**31 - 1, 0)
    assert refusal(table, header(3), given) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    table.check(header(2**31 - 1), given)


def test_verifications_are_limited_and_the_oldest_is_forgotten_after_a_while() -> None:
    table = Verifications()
    for producer_id in range(MAX_VERIFICATIONS):
        table.begin(producer_id, 0, 0, 0)
    with pytest.raises(KafkaError) as refused:
        table.begin(-1, 0, 0, FORGOTTEN_AFTER_MS - 1)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    table.begin(-1, 0, 0, FORGOTTEN_AFTER_MS)
    assert len(table.pending) == MAX_VERIFICATIONS
    assert 0 not in table.pending
