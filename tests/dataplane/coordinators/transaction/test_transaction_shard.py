"""The operations on transactional ids: worked examples of KIP-98, KIP-360, KIP-588 and KIP-890."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from metaquorum.dataplane.coordinators.client_budget import COORDINATOR, ClientBudget
from metaquorum.dataplane.coordinators.shard import CoordinatorRecord, Write
from metaquorum.dataplane.coordinators.transaction.record_formats import encode_key, encode_value
from metaquorum.dataplane.coordinators.transaction.transaction import Place, State, Transaction
from metaquorum.dataplane.coordinators.transaction.transaction_shard import (
    MAX_PARTITIONS,
    MAX_TOPICS,
    Expected,
    Outcome,
    TransactionShard,
)
from metaquorum.dataplane.scheduling.time_slices import at_once
from metaquorum.wire.primitives.errors import ErrorCode
from tests.dataplane.stepped import stepped

ID = "x"
PLACE = ("t", 0)


class Coordinator:
    """A shard whose records the test commits."""

    def __init__(self, version: int = 2) -> None:
        self.version = version
        self.now_ms = 1000
        self.log: list[CoordinatorRecord] = []
        self.prepared: list[Transaction] = []
        self.budget = ClientBudget("transaction.budget.max.bytes", lambda: 1 << 20)
        self.new_ids = iter(range(100, 200))
        self.left_open: dict[int, list[Place]] = {}
        self.certain_from = 0  # records of the log before this one are doubtful
        self.load()

    def load(self) -> None:
        self.shard = TransactionShard(
            0,
            5,
            self.budget,
            lambda: self.version,
            lambda _, __, each: self.prepared.append(each),
            find_open=lambda shard: shard.found_open(self.left_open),
        )
        for at, record in enumerate(self.log):
            is_doubtful = at < self.certain_from
            self.shard.replay(CoordinatorRecord(record.key, record.value, None, is_doubtful), 0.0)
        at_once(self.shard.restore(0.0))
        self.shard.loaded(0.0, self.now_ms)

    def resume(self) -> None:
        while self.shard.next_due <= 0.0:
            self.take(Write(self.shard.due(0.0, self.now_ms), None))

    def lose(self, count: int) -> None:
        """Let the last records of the log be lost, and load it in the next leader epoch."""
        del self.log[len(self.log) - count :]
        self.certain_from = len(self.log)
        self.fail_over()

    def fail_over(self, *, is_resumed: bool = True) -> None:
        at_once(self.shard.unload())
        assert self.budget.used_bytes == 0
        self.prepared.clear()
        self.load()
        if is_resumed:
            self.resume()

    def take(self, outcome: Any) -> Any:
        if not isinstance(outcome, Write):
            return outcome
        self.log += outcome.records
        self.shard.replay_appended(outcome.records, 0.0)
        return outcome.answer

    def init(self, expected: Expected | None = None, timeout_ms: int = 60_000) -> Outcome:
        def run(new_id: int | None) -> Outcome:
            outcome: Outcome = self.take(
                self.shard.init_producer_id(ID, timeout_ms, expected, self.now_ms, new_id)
            )
            return outcome

        outcome = run(None)
        return run(next(self.new_ids)) if outcome.needs_id else outcome

    def add(
        self, producer: Outcome, version: int = 0, places: Sequence[Place] = (PLACE,)
    ) -> ErrorCode:
        code: ErrorCode = self.take(
            self.shard.add_partitions(ID, producer_of(producer), places, version, self.now_ms)
        )
        return code

    def end(self, producer: Outcome, *, is_commit: bool = True, version: int = 0) -> Outcome:
        def run(new_id: int | None) -> Outcome:
            outcome: Outcome = self.take(
                self.shard.end(
                    ID,
                    producer_of(producer),
                    is_commit=is_commit,
                    client_version=version,
                    now_ms=self.now_ms,
                    new_id=new_id,
                )
            )
            return outcome

        outcome = run(None)
        return run(next(self.new_ids)) if outcome.needs_id else outcome

    def complete(self) -> None:
        self.take(self.shard.complete(ID, self.now_ms))

    def is_in(self, state: State) -> bool:
        return self.shard.transactions[ID].state is state

    @property
    def ids(self) -> tuple[int, int]:
        known = self.shard.transactions[ID]
        return known.producer_id, known.producer_epoch


def producer_of(outcome: Outcome) -> Expected:
    return Expected(outcome.producer_id, outcome.producer_epoch)


def test_a_classic_transaction_keeps_its_epoch() -> None:
    coordinator = Coordinator(version=0)
    producer = coordinator.init()
    assert producer == Outcome(ErrorCode.NONE, 100, 0)
    assert coordinator.add(producer) is ErrorCode.NONE
    assert coordinator.is_in(State.ONGOING)
    assert coordinator.end(producer) == producer
    assert [each.state for each in coordinator.prepared] == [State.PREPARE_COMMIT]
    assert coordinator.end(producer).code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.add(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.complete()
    assert coordinator.is_in(State.COMPLETE_COMMIT)
    assert coordinator.end(producer) == producer
    assert coordinator.end(producer, is_commit=False).code is ErrorCode.INVALID_TXN_STATE


def test_nothing_is_prepared_before_the_record_is_committed() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer)
    write = coordinator.shard.end(
        ID, producer_of(producer), is_commit=True, client_version=2, now_ms=1
    )
    assert isinstance(write, Write)
    coordinator.shard.appended(write.records)
    assert not coordinator.prepared
    assert coordinator.is_in(State.ONGOING)
    assert coordinator.add(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.shard.refused(write.records, 0.0)
    assert coordinator.add(producer) is ErrorCode.NONE


@pytest.mark.parametrize("version", [0, 2])
def test_an_id_whose_first_record_is_not_committed_yet_is_not_unknown(version: int) -> None:
    """An earlier attempt of the client may have begun it: an unknown id would be fatal to it."""
    coordinator = Coordinator(version)
    write = coordinator.shard.init_producer_id(ID, 60_000, None, 1, 100)
    assert isinstance(write, Write)
    coordinator.shard.appended(write.records)
    producer = Outcome(ErrorCode.NONE, 100, 0)
    assert coordinator.end(producer, version=version).code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.add(producer, version) is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.shard.refused(write.records, 0.0)
    code = coordinator.end(producer, version=version).code
    assert code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_every_end_raises_the_epoch_in_version_2() -> None:
    coordinator = Coordinator()
    first = coordinator.init()
    coordinator.add(first, version=2)
    second = coordinator.end(first, version=2)
    assert second == Outcome(ErrorCode.NONE, 100, 1)
    assert coordinator.prepared[0].producer_epoch == 1
    coordinator.complete()
    assert coordinator.end(first, version=2) == second  # a retry
    assert coordinator.end(first, is_commit=False, version=2).code is ErrorCode.INVALID_TXN_STATE
    assert coordinator.add(first, version=2) is ErrorCode.PRODUCER_FENCED
    # The abort of an empty transaction raises it, too.
    third = coordinator.end(second, is_commit=False, version=2)
    assert third == Outcome(ErrorCode.NONE, 100, 2)
    assert coordinator.end(third, version=2).code is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.complete()
    assert coordinator.end(third, version=2).code is ErrorCode.INVALID_TXN_STATE


def test_the_last_epoch_gives_a_new_producer_id() -> None:
    coordinator = Coordinator()
    coordinator.init()
    known = coordinator.shard.transactions[ID]
    coordinator.shard.transactions[ID] = known.__class__(
        **{name: getattr(known, name) for name in known.__dataclass_fields__}
        | {"producer_epoch": 32_766}
    )
    last = Outcome(ErrorCode.NONE, 100, 32_766)
    coordinator.add(last, version=2)
    following = coordinator.end(last, version=2)
    assert following == Outcome(ErrorCode.NONE, 101, 0)
    assert coordinator.prepared[0].producer_epoch == 32_767
    coordinator.complete()
    assert coordinator.ids == (101, 0)
    coordinator.fail_over()
    assert coordinator.end(last, version=2) == following  # a retry after a failover


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("is_commit", [True, False])
def test_an_open_transaction_keeps_its_protocol_when_the_level_is_lowered(
    level: int, is_commit: bool
) -> None:
    coordinator = Coordinator(version=2)
    first = coordinator.init()
    coordinator.add(first, version=2)
    coordinator.version = level
    coordinator.add(first, version=2, places=[("t", 1)])
    second = coordinator.end(first, is_commit=is_commit, version=2)
    assert second == Outcome(ErrorCode.NONE, 100, 1)
    coordinator.fail_over()
    (prepared,) = coordinator.prepared
    # A late copy of a marker of version 0 could end the next transaction, which has its epoch.
    assert (prepared.client_version, prepared.producer_epoch) == (2, 1)
    assert prepared.partitions == {PLACE, ("t", 1)}
    coordinator.complete()
    assert coordinator.end(first, is_commit=is_commit, version=2) == second  # a retry
    # The client learns the level, and begins its next transaction with that.
    assert coordinator.add(second) is ErrorCode.NONE
    assert coordinator.end(second) == second
    coordinator.complete()
    coordinator.fail_over()
    assert coordinator.shard.transactions[ID].client_version == 0
    assert not coordinator.prepared


@pytest.mark.parametrize("level", [0, 1])
def test_the_next_producer_id_is_not_forgotten_when_the_level_is_lowered(level: int) -> None:
    coordinator = Coordinator(version=2)
    coordinator.init()
    known = coordinator.shard.transactions[ID]
    coordinator.shard.transactions[ID] = replace(known, producer_epoch=32_766)
    last = Outcome(ErrorCode.NONE, 100, 32_766)
    coordinator.add(last, version=2)
    coordinator.version = level
    following = coordinator.end(last, version=2)
    assert following == Outcome(ErrorCode.NONE, 101, 0)
    coordinator.fail_over()
    coordinator.complete()
    coordinator.fail_over()
    assert coordinator.end(last, version=2) == following  # a retry after a failover
    assert coordinator.add(following) is ErrorCode.NONE


@pytest.mark.parametrize("level", [0, 1])
def test_a_transaction_that_is_aborted_after_the_level_was_lowered_keeps_its_protocol(
    level: int,
) -> None:
    """Its client may take the abort for its own, and continue with the epoch of the markers."""
    coordinator = Coordinator(version=2)
    first = coordinator.init()
    coordinator.add(first, version=2)
    coordinator.version = level
    assert coordinator.init().code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert [each.client_version for each in coordinator.prepared] == [2]


def test_a_new_instance_aborts_the_open_transaction_and_fences() -> None:
    for version in (0, 1, 2):
        coordinator = Coordinator(version)
        first = coordinator.init()
        coordinator.add(first, version)
        assert coordinator.init().code is ErrorCode.CONCURRENT_TRANSACTIONS
        assert [each.state for each in coordinator.prepared] == [State.PREPARE_ABORT]
        assert coordinator.prepared[0].producer_epoch == 1
        assert coordinator.init().code is ErrorCode.CONCURRENT_TRANSACTIONS
        coordinator.complete()
        assert coordinator.init() == Outcome(ErrorCode.NONE, 100, 2)
        assert coordinator.add(first) is ErrorCode.PRODUCER_FENCED


def test_a_client_may_raise_its_epoch_and_retry_that() -> None:
    coordinator = Coordinator()
    first = coordinator.init()
    second = coordinator.init(producer_of(first))
    assert second.producer_epoch == 1
    assert coordinator.init(producer_of(first)) == second
    assert coordinator.init().producer_epoch == 2
    assert coordinator.init(producer_of(second)).code is ErrorCode.PRODUCER_FENCED
    assert coordinator.init(Expected(7, 0)).code is ErrorCode.PRODUCER_FENCED


def test_prepared_transactions_resume_after_a_failover() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, version=2)
    coordinator.end(producer, version=2)
    before = coordinator.prepared[0]
    coordinator.fail_over()
    (after,) = coordinator.prepared
    assert (after.partitions, after.producer_epoch, after.state) == (
        before.partitions,
        before.producer_epoch,
        before.state,
    )
    assert coordinator.init().code is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.complete()
    assert coordinator.is_in(State.COMPLETE_COMMIT)


def test_markers_of_a_transaction_that_ended_after_a_failover_are_sent_once() -> None:
    coordinator = Coordinator(version=0)
    producer = coordinator.init()
    coordinator.add(producer)
    coordinator.fail_over(is_resumed=False)
    coordinator.end(producer)
    assert len(coordinator.prepared) == 1
    coordinator.resume()
    assert len(coordinator.prepared) == 1


def test_a_completion_that_is_refused_is_written_again() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer)
    coordinator.end(producer)
    write = coordinator.shard.complete(ID, 1)
    assert write is not None
    coordinator.shard.refused(write.records, 10.0)
    assert coordinator.shard.next_due == 11.0
    coordinator.take(Write(coordinator.shard.due(11.0, 1), None))
    assert coordinator.is_in(State.COMPLETE_COMMIT)


def test_a_transaction_that_is_open_for_too_long_is_aborted() -> None:
    coordinator = Coordinator(version=0)
    producer = coordinator.init(timeout_ms=10)
    coordinator.add(producer)
    assert at_once(coordinator.shard.timed_out(1010)) == []
    assert at_once(coordinator.shard.timed_out(1011)) == [ID]
    coordinator.take(coordinator.shard.abort_timed_out(ID, 1011))
    assert coordinator.prepared[0].producer_epoch == 1
    assert at_once(coordinator.shard.timed_out(1011)) == []


def test_added_partitions_do_not_extend_the_time_of_a_transaction() -> None:
    coordinator = Coordinator(version=0)
    producer = coordinator.init(timeout_ms=10)
    coordinator.add(producer)
    coordinator.now_ms = 1008
    coordinator.add(producer, places=[("t", 1)])
    assert coordinator.shard.transactions[ID].partitions == {("t", 0), ("t", 1)}
    assert at_once(coordinator.shard.timed_out(1010)) == []
    assert at_once(coordinator.shard.timed_out(1011)) == [ID]
    # The next transaction has a time of its own.
    coordinator.end(producer)
    coordinator.complete()
    coordinator.add(producer)
    assert at_once(coordinator.shard.timed_out(1018)) == []
    assert at_once(coordinator.shard.timed_out(1019)) == [ID]


def test_the_clock_of_an_earlier_coordinator_does_not_keep_a_transaction_open() -> None:
    """It was five minutes ahead (transactions 770008)."""
    coordinator = Coordinator(version=0)
    producer = coordinator.init(timeout_ms=10)
    coordinator.now_ms = 301_000
    coordinator.add(producer)
    coordinator.now_ms = 1000
    coordinator.fail_over()
    assert at_once(coordinator.shard.timed_out(1010)) == []
    assert at_once(coordinator.shard.timed_out(1011)) == [ID]


def test_an_id_expires_unless_its_transaction_is_open() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    assert at_once(coordinator.shard.expired(1009, 10)) == []
    assert at_once(coordinator.shard.expired(1010, 10)) == [ID]
    coordinator.take(coordinator.shard.remove_expired([ID], 1010, 10))
    assert ID not in coordinator.shard.transactions
    assert coordinator.budget.used_bytes == 0
    assert coordinator.add(producer) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer = coordinator.init()
    coordinator.add(producer)
    assert at_once(coordinator.shard.expired(10_000, 10)) == []


def test_many_ids_are_looked_at_in_pieces() -> None:
    """One partition may have 100,000 ids and more, and the event loop has other work."""
    shard = Coordinator().shard
    for number in range(1000):
        shard.transactions[f"x-{number}"] = Transaction(number, 0, 1, 0)
    for work in (shard.timed_out(10), shard.expired(10, 5)):
        assert len(list(stepped(work))) >= 10


def test_verification_answers_for_each_partition() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer)
    found = coordinator.shard.verify_partitions(ID, producer_of(producer), [PLACE, ("t", 1)])
    assert found == {PLACE: ErrorCode.NONE, ("t", 1): ErrorCode.TRANSACTION_ABORTABLE}
    found = coordinator.shard.verify_partitions(ID, Expected(100, 1), [PLACE])
    assert found == {PLACE: ErrorCode.PRODUCER_FENCED}


def test_a_partition_is_confirmed_if_its_verification_has_no_error() -> None:
    coordinator = Coordinator()
    shard, producer = coordinator.shard, coordinator.init()

    def is_confirmed(client: Expected, place: tuple[str, int], transactional_id: str = ID) -> bool:
        codes = shard.verify_partitions(transactional_id, client, [place])
        confirmed = place in shard.confirmed(transactional_id, *client)
        assert confirmed is (codes == {place: ErrorCode.NONE})
        return confirmed

    client = producer_of(producer)
    assert not is_confirmed(client, PLACE)
    coordinator.add(producer)
    assert is_confirmed(client, PLACE)
    assert not is_confirmed(client, ("t", 1))
    assert not is_confirmed(client._replace(producer_epoch=client.producer_epoch + 1), PLACE)
    assert not is_confirmed(client._replace(producer_id=client.producer_id + 1), PLACE)
    assert not is_confirmed(client, PLACE, "another")
    coordinator.end(producer)
    assert not is_confirmed(client, PLACE)


def test_malformed_records_are_skipped_and_counted() -> None:
    coordinator = Coordinator()
    for key, value in ((b"\0\0\0\5x", b""), (b"\0\0\0\1x", b"\0\2"), (b"\0", None)):
        coordinator.shard.replay(CoordinatorRecord(key, value), 0.0)
    coordinator.shard.replay(CoordinatorRecord(b"\0\1\0\1x", b"newer kind"), 0.0)
    assert coordinator.shard.unreadable_count == 3


def test_prepared_transactions_are_resumed_in_pieces_after_a_load() -> None:
    """All of them were in one step: 900 ms for 100,000 ids."""
    coordinator = Coordinator()
    for number in range(300):
        began = Transaction(number, 0, 1000, 0).with_partitions([PLACE], 0, 2)
        prepared = began.prepared(State.PREPARE_COMMIT, 2, 0)
        coordinator.log.append(
            CoordinatorRecord(encode_key(f"x-{number}"), encode_value(prepared, 1))
        )
    resumed: list[str] = []
    shard = TransactionShard(
        0, 5, coordinator.budget, lambda: 2, lambda _, name, __: resumed.append(name)
    )
    for record in coordinator.log:
        shard.replay(record, 0.0)
    at_once(shard.restore(0.0))
    shard.loaded(0.0, 1000)
    assert not resumed
    for version in (0, 2):  # an EndTxn that is repeated waits, as does one whose markers are sent
        ended = shard.end(
            "x-299",
            Expected(299, 0 if version else 1),
            is_commit=True,
            client_version=version,
            now_ms=1000,
        )
        assert ended == Outcome(ErrorCode.CONCURRENT_TRANSACTIONS)
    steps = 0
    while shard.next_due <= 0.0:
        before = len(resumed)
        assert not shard.due(0.0, 1000, lambda: True)
        assert len(resumed) - before <= 64
        steps += 1
    assert len(resumed) == len(set(resumed)) == 300
    assert steps > 4
    shard.replay_appended(shard.complete("x-7", 1000).records, 0.0)  # type: ignore[union-attr]
    assert shard.transactions["x-7"].state is State.COMPLETE_COMMIT


def test_uncommitted_records_of_loaded_ids_are_those_of_the_request() -> None:
    """Otherwise one client with many loaded ids would have the share of all producers."""
    coordinator, clients = Coordinator(), []

    def write(outcome: Any) -> None:
        assert isinstance(outcome, Write)
        clients.append(outcome.client)
        coordinator.take(outcome)

    for version in (0, 2):
        producer = producer_of(coordinator.init())
        coordinator.fail_over()
        shard, now_ms = coordinator.shard, coordinator.now_ms
        write(shard.add_partitions(ID, producer, [PLACE], version, now_ms, "a"))
        write(
            shard.end(
                ID, producer, is_commit=True, client_version=version, now_ms=now_ms, client="b"
            )
        )
        write(shard.complete(ID, now_ms))
        write(shard.init_producer_id(ID, 1000, None, now_ms, client="c"))
        assert clients == ["a", "b", COORDINATOR, "c"]
        clients.clear()
    write(shard.remove_expired([ID], now_ms, 0))
    assert clients == [COORDINATOR]


def test_nothing_is_resumed_after_the_end_of_the_leadership() -> None:
    coordinator = Coordinator()
    prepared = Transaction(7, 0, 1000, 0).prepared(State.PREPARE_ABORT, 2, 0)
    resumed: list[str] = []
    shard = TransactionShard(
        0, 5, coordinator.budget, lambda: 2, lambda _, name, __: resumed.append(name)
    )
    shard.replay(CoordinatorRecord(encode_key(ID), encode_value(prepared, 1)), 0.0)
    at_once(shard.restore(0.0))
    shard.loaded(0.0, 1000)
    at_once(shard.unload())
    assert not shard.due(0.0, 1000)
    assert not resumed


def test_a_transaction_has_a_limited_number_of_topics_and_partitions() -> None:
    """Its record is encoded in one step, and again with every partition that is added."""
    coordinator = Coordinator()
    outcome = coordinator.init()
    producer = Expected(outcome.producer_id, outcome.producer_epoch)

    def add(places: list[Place]) -> object:
        return coordinator.take(coordinator.shard.add_partitions(ID, producer, places, 0, 1000))

    coordinator.budget.limit_bytes = lambda: 1 << 30
    too_many_topics = [(f"t-{number}", 0) for number in range(MAX_TOPICS + 1)]
    assert add(too_many_topics) is ErrorCode.INVALID_REQUEST
    assert add([("t", index) for index in range(MAX_PARTITIONS + 1)]) is ErrorCode.INVALID_REQUEST
    assert coordinator.shard.transactions[ID].state is State.EMPTY
    assert add(too_many_topics[1:]) is ErrorCode.NONE
    assert add(too_many_topics[:1]) is ErrorCode.INVALID_REQUEST
    assert add([("t-1", 1)]) is ErrorCode.NONE
    rest = MAX_PARTITIONS - MAX_TOPICS - 1
    assert add([("t-1", 2 + index) for index in range(rest)]) is ErrorCode.NONE
    assert add([("t-2", 1)]) is ErrorCode.INVALID_REQUEST
    assert add([("t-1", 1)]) is ErrorCode.NONE
    assert len(coordinator.shard.transactions[ID].partitions) == MAX_PARTITIONS
