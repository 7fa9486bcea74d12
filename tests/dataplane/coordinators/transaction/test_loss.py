"""Transactional ids after a loss of the end of `__transaction_state`, as with the power."""

from dataclasses import replace

import pytest

from metaquorum.dataplane.coordinators.transaction.transaction import MAX_EPOCH, State
from metaquorum.dataplane.coordinators.transaction.transaction_shard import Expected, Outcome
from metaquorum.metadata.internal_topics import TRANSACTION_STATE
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.batches import parse_header
from metaquorum.wire.records.records import Record, encode_batch
from tests.dataplane.coordinators.transaction.test_transaction_shard import (
    ID,
    PLACE,
    Coordinator,
    producer_of,
)
from tests.dataplane.replication.together import Together, together

VERSIONS = (0, 2)
UNKNOWN = Outcome(ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def committed(coordinator: Coordinator, producer: Outcome, version: int) -> Outcome:
    """Commit a transaction; return the producer with the epoch of its next one."""
    assert coordinator.add(producer, version) is ErrorCode.NONE
    after = coordinator.end(producer, version=version)
    assert after.code is ErrorCode.NONE
    coordinator.complete()
    return after


@pytest.mark.parametrize("version", VERSIONS)
def test_an_epoch_that_a_loss_has_forgotten_is_not_given_again(version: int) -> None:
    """Partitions may know its sequences, and take a first batch for a duplicate of another."""
    coordinator = Coordinator(version)
    given = [coordinator.init()]
    given.append(committed(coordinator, given[0], version))
    records = len(coordinator.log)
    given.append(coordinator.init())
    given.append(committed(coordinator, given[-1], version))
    coordinator.lose(len(coordinator.log) - records)
    coordinator.fail_over()  # the loss is not forgotten with the next leader
    after = coordinator.init()
    assert after == Outcome(ErrorCode.NONE, 101, 0)
    after = committed(coordinator, after, version)
    assert after.producer_id == 101
    coordinator.fail_over()
    assert coordinator.init() == Outcome(ErrorCode.NONE, 101, after.producer_epoch + 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_gets_an_error_after_which_it_continues(version: int) -> None:
    coordinator = Coordinator(version)
    known = coordinator.init()
    later = coordinator.init()
    coordinator.lose(1)
    for producer in (known, later):
        assert coordinator.add(producer, version) is UNKNOWN.code
        assert coordinator.shard.verify_partitions(ID, producer_of(producer), [PLACE]) == {
            PLACE: UNKNOWN.code
        }
        for is_commit in (False, True):
            assert coordinator.end(producer, is_commit=is_commit, version=version) == UNKNOWN
    after = coordinator.init(producer_of(later))
    assert after == Outcome(ErrorCode.NONE, 101, 0)
    assert committed(coordinator, after, version).producer_id == 101
    assert coordinator.end(known, version=version) == UNKNOWN


def test_the_outcome_of_a_decided_transaction_is_still_known() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, version=2)
    after = coordinator.end(producer, version=2)
    coordinator.lose(0)
    assert [each.state for each in coordinator.prepared] == [State.PREPARE_COMMIT]
    assert coordinator.prepared[0].producer_epoch == after.producer_epoch
    assert coordinator.end(producer, version=2).code is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.complete()
    assert coordinator.end(producer, version=2).code is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.resume()  # no later transaction is open
    assert coordinator.end(producer, version=2) == after
    assert coordinator.end(producer, is_commit=False, version=2) == UNKNOWN
    assert coordinator.end(after, version=2) == UNKNOWN
    assert coordinator.add(after, version=2) is UNKNOWN.code
    coordinator.fail_over()
    assert coordinator.ids == (100, MAX_EPOCH)
    assert coordinator.init() == Outcome(ErrorCode.NONE, 101, 0)


def test_in_version_0_a_lost_transaction_is_not_taken_for_the_committed_one() -> None:
    coordinator = Coordinator(version=0)
    producer = coordinator.init()
    committed(coordinator, producer, 0)
    coordinator.add(producer)
    coordinator.lose(1)
    assert coordinator.end(producer) == UNKNOWN


@pytest.mark.parametrize("version", VERSIONS)
def test_an_open_transaction_is_aborted_with_the_last_epoch(version: int) -> None:
    coordinator = Coordinator(version)
    producer = coordinator.init()
    coordinator.add(producer, version)
    coordinator.left_open = {100: [("u", 1)], 7: [("v", 0)]}
    coordinator.lose(0)
    (aborted,) = coordinator.prepared
    assert (aborted.state, aborted.producer_epoch) == (State.PREPARE_ABORT, MAX_EPOCH)
    assert aborted.partitions == {PLACE, ("u", 1)}
    assert coordinator.init().code is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.fail_over()
    (resumed,) = coordinator.prepared
    assert (resumed.producer_epoch, resumed.partitions) == (MAX_EPOCH, aborted.partitions)
    coordinator.complete()
    assert coordinator.ids == (100, MAX_EPOCH)
    assert coordinator.init() == Outcome(ErrorCode.NONE, 101, 0)


@pytest.mark.parametrize("is_prepared", [False, True])
def test_what_only_a_partition_knows_to_be_open_is_aborted(is_prepared: bool) -> None:
    """Otherwise its readers wait: no later marker has this producer id."""
    coordinator = Coordinator()
    producer = coordinator.init()
    if is_prepared:
        coordinator.add(producer, version=2)
        producer = coordinator.end(producer, version=2)
        kept = len(coordinator.log)
        coordinator.complete()
    else:
        kept = len(coordinator.log)
    coordinator.add(producer, version=2)
    coordinator.left_open = {100: [PLACE]}
    coordinator.lose(len(coordinator.log) - kept)
    if is_prepared:
        coordinator.complete()
        coordinator.resume()
    aborted = coordinator.prepared[-1]
    assert (aborted.state, aborted.producer_epoch) == (State.PREPARE_ABORT, MAX_EPOCH)
    assert aborted.partitions == {PLACE}
    assert coordinator.init().code is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.left_open = {}
    coordinator.complete()
    assert coordinator.init() == Outcome(ErrorCode.NONE, 101, 0)


def test_an_abort_after_a_loss_that_is_refused_is_written_again() -> None:
    coordinator = Coordinator()
    coordinator.add(coordinator.init(), version=2)
    coordinator.certain_from = len(coordinator.log)
    coordinator.fail_over(is_resumed=False)
    records = coordinator.shard.due(0.0, 1)
    assert len(records) == 1
    coordinator.shard.refused(records, 10.0)
    assert coordinator.shard.next_due == 11.0
    assert coordinator.init().code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert len(coordinator.shard.due(11.0, 1)) == 1


def test_ids_that_were_given_after_the_loss_are_not_doubtful() -> None:
    coordinator = Coordinator()
    coordinator.lose(0)
    producer = coordinator.init()
    coordinator.fail_over()
    assert coordinator.shard.doubtful_count == 0
    assert coordinator.add(producer, version=2) is ErrorCode.NONE
    assert coordinator.shard.verify_partitions(ID, Expected(100, 0), [PLACE]) == {
        PLACE: ErrorCode.NONE
    }


class Producing:
    """A producer of a transactional id, and its partition, which the coordinator's worker leads."""

    def __init__(self, cluster: Together, leader: int, producer: Outcome) -> None:
        self.coordinator = cluster.worker(leader).transactions
        self.producer_id, self.epoch = producer.producer_id, producer.producer_epoch
        self.partition = cluster.replica(leader, "t")
        self.log = self.partition.log
        self.batch = encode_batch(
            [Record(0, 1000, b"k", b"v")],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=0,
            transactional=True,
        )
        self.header = parse_header(self.batch)
        self._states = cluster.replica(leader, TRANSACTION_STATE)

    @classmethod
    async def create(cls, cluster: Together) -> "Producing":
        topic = await cluster.worker(1).internal_topics.ensure(TRANSACTION_STATE)
        leader = topic.partitions[0].leader
        await cluster.create("t", (leader,))
        coordinator = cluster.worker(leader).transactions
        await cluster.until(lambda: 0 in coordinator.shards)
        return cls(cluster, leader, await coordinator.init_producer_id(ID, 5000, None))

    def lose_states(self) -> None:
        """Let the end of `__transaction_state` be lost: its leader has the last replica."""
        states = self._states
        epoch, leader = states.leader_epoch + 2, states.worker_id
        alone = replace(states.state, replicas=(leader,), isr=(leader,), leader_epoch=epoch)
        states.assign(replace(alone, unclean_epoch=epoch))
        self.coordinator.runtime.look()


@together(transaction_state_log_num_partitions=1)
async def test_readers_do_not_wait_for_a_transaction_that_a_loss_has_forgotten(
    cluster: Together,
) -> None:
    lost = await Producing.create(cluster)
    led, coordinator = lost.partition, lost.coordinator
    led.log.append(lost.batch, lost.header, led.leader_epoch, 1)
    led.appended(len(lost.batch))
    assert led.last_stable_offset == 0
    lost.lose_states()
    await cluster.until(lambda: led.last_stable_offset == 2)
    assert led.log.log_end_offset == 2
    await cluster.until(lambda: coordinator.shards and not coordinator.shards[0].is_pending(ID))
    found = await coordinator.init_producer_id(ID, 5000, None)
    assert found.code is ErrorCode.NONE
    assert found.producer_id != lost.producer_id


@together(transaction_state_log_num_partitions=1)
async def test_a_transaction_that_was_verified_before_the_loss_does_not_begin_after_it(
    cluster: Together,
) -> None:
    """No marker would end it: the coordinator that has verified it is forgotten, and its epoch."""
    lost = await Producing.create(cluster)
    producers = lost.log.producers
    verified = producers.verifications.begin(lost.producer_id)
    producers.check_verified(lost.header, verified)
    lost.lose_states()
    await cluster.until(lambda: lost.log.log_end_offset == 1)  # the marker
    with pytest.raises(KafkaError) as refused:
        producers.check_verified(lost.header, verified)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
