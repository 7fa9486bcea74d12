"""The calls that a transactional producer permits next, and the meaning of each error."""

import pytest

from metaquorum.client.cluster import TopicPartition
from metaquorum.client.errors import BrokerError
from metaquorum.client.transactions.errors import (
    AbortableTransactionError,
    FatalTransactionError,
    ProducerFencedError,
)
from metaquorum.client.transactions.transaction_state import (
    State,
    TransactionState,
    WrongStateError,
)
from metaquorum.wire.primitives.errors import ErrorCode

PLACE = TopicPartition("t", 0)


def opened(level: int = 2) -> TransactionState:
    state = TransactionState("id")
    state.initialized(7, 0)
    state.begin(level)
    return state


def test_a_transaction_begins_after_init_only() -> None:
    state = TransactionState("id")
    with pytest.raises(WrongStateError, match="transactional id id is new; the call needs: ready"):
        state.begin(2)
    state.initialized(7, 0)
    state.begin(2)
    with pytest.raises(WrongStateError, match="in a transaction"):
        state.begin(2)


def test_partitions_are_added_once_and_at_lower_levels_only() -> None:
    state = opened(level=1)
    assert state.unadded([PLACE]) == [PLACE]
    state.partitions.add(PLACE)
    assert state.unadded([PLACE, TopicPartition("t", 1)]) == [TopicPartition("t", 1)]
    assert opened(level=2).unadded([PLACE]) == []


@pytest.mark.parametrize(
    ("code", "of_coordinator", "expected"),
    [
        (ErrorCode.PRODUCER_FENCED, True, ProducerFencedError),
        (ErrorCode.PRODUCER_FENCED, False, ProducerFencedError),
        (ErrorCode.INVALID_PRODUCER_EPOCH, True, ProducerFencedError),
        # Leaders answer it for a transaction that the coordinator has aborted (KIP-588).
        (ErrorCode.INVALID_PRODUCER_EPOCH, False, AbortableTransactionError),
        (ErrorCode.INVALID_TXN_STATE, True, FatalTransactionError),
        (ErrorCode.INVALID_TXN_STATE, False, AbortableTransactionError),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, True, FatalTransactionError),
        (ErrorCode.TRANSACTION_ABORTABLE, True, AbortableTransactionError),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, False, AbortableTransactionError),
        (ErrorCode.ILLEGAL_GENERATION, True, AbortableTransactionError),
        (ErrorCode.MESSAGE_TOO_LARGE, False, AbortableTransactionError),
    ],
)
def test_errors_are_fatal_or_abort_the_transaction(
    code: ErrorCode, of_coordinator: bool, expected: type[BrokerError]
) -> None:
    state = opened()
    error = state.on_error(BrokerError(code, "why", "it"), of_coordinator=of_coordinator)
    assert type(error) is expected
    is_fatal = issubclass(expected, FatalTransactionError)
    assert state.state is (State.FATAL if is_fatal else State.FAILED)
    with pytest.raises(expected):  # raised again by every call that is no longer permitted
        state.check(State.OPEN)
    if not is_fatal:
        state.check(State.OPEN, State.FAILED)


def test_a_fatal_error_stays() -> None:
    state = opened()
    state.on_error(BrokerError(ErrorCode.PRODUCER_FENCED), of_coordinator=True)
    later = state.on_error(BrokerError(ErrorCode.MESSAGE_TOO_LARGE), of_coordinator=False)
    assert type(later) is ProducerFencedError
    assert state.state is State.FATAL


def test_the_answer_to_the_end_has_the_next_epoch() -> None:
    state = opened()
    state.partitions.add(PLACE)
    state.is_started = state.is_uncertain = True
    assert state.ended(7, 1)
    assert (state.producer_epoch, state.state, state.partitions) == (1, State.READY, set())
    assert not state.is_started
    assert not state.is_uncertain
    state.begin(0)
    assert not state.ended(-1, -1)  # EndTxn before version 5
    assert (state.producer_id, state.producer_epoch) == (7, 1)


def test_an_epoch_that_ended_a_transaction_below_level_2_is_not_used_at_level_2() -> None:
    state = opened(level=1)
    state.ended(-1, -1)  # nothing was sent
    assert not state.needs_epoch(2)
    state.begin(1)
    state.is_started = True
    state.ended(-1, -1)
    assert state.needs_epoch(2)
    assert not state.needs_epoch(1)
    state.begin(1)
    state.ended(-1, -1)
    assert state.needs_epoch(2)
    state.initialized(7, 1)
    assert not state.needs_epoch(2)
