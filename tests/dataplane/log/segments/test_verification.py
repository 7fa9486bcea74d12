"""Verifications of producers in one log: what ends them, and what may rely on them."""

import pytest

from metaquorum.dataplane.log.segments.verification import NOT_REQUIRED, Verification, Verifications
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.records import BatchHeader, parse_header
from tests.dataplane.serving import batch_of

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


def test_only_a_verification_in_progress_counts() -> None:
    table = Verifications()
    first = table.begin(PRODUCER)
    table.check(header(0), first)
    assert refusal(table, header(0), None) is ErrorCode.INVALID_TXN_STATE
    table.end(PRODUCER)
    assert refusal(table, header(0), first) is ErrorCode.INVALID_TXN_STATE
    second = table.begin(PRODUCER)
    assert refusal(table, header(0), first) is ErrorCode.INVALID_TXN_STATE
    table.check(header(0), second)
    table.check(header(5), NOT_REQUIRED)


def test_a_batch_or_a_marker_ends_those_of_all_requests_of_the_producer() -> None:
    table = Verifications()
    both = [table.begin(PRODUCER), table.begin(PRODUCER)]
    other = table.begin(PRODUCER + 1)
    table.end(PRODUCER)
    assert not any(table.is_pending(PRODUCER, one) for one in both)
    assert table.is_pending(PRODUCER + 1, other)


def test_a_request_that_is_over_ends_its_own_alone() -> None:
    """A forged request cannot end the verification of the producer whose id it has."""
    table = Verifications()
    given, forged = table.begin(PRODUCER), table.begin(PRODUCER)
    table.cancel(PRODUCER, forged)
    table.cancel(PRODUCER, forged)
    table.check(header(3), given)
    table.cancel(PRODUCER, given)
    assert refusal(table, header(3), given) is ErrorCode.INVALID_TXN_STATE
    assert not table.pending


def test_the_transaction_has_its_own_epoch_if_the_append_relied_on_such_a_verification() -> None:
    table = Verifications()
    given = table.begin(PRODUCER)
    table.begin(PRODUCER, has_own_epoch=True)
    table.check(header(0), given)
    assert not table.end(PRODUCER)
    given = table.begin(PRODUCER, has_own_epoch=True)
    table.check(header(0), given)
    assert table.end(PRODUCER)
