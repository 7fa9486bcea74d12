"""A controller and its workers in virtual time: fencing of workers, and its effect on topics."""

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
import trio.testing

from metaquorum.metadata.image import NO_LEADER
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import Endpoint, FeatureRange
from metaquorum.quorum.controller import worker_lifecycle
from metaquorum.quorum.controller.controller import Controller
from metaquorum.quorum.controller.features import SUPPORTED_FEATURES, FeatureUpdate, UpgradeType
from metaquorum.quorum.controller.heartbeats import (
    RECONNECT_GRACE_S,
    HeartbeatAnswer,
    WorkerHeartbeat,
)
from metaquorum.quorum.controller.topics import NewTopic
from metaquorum.quorum.controller.worker_registration import (
    ControllerRegistration,
    WorkerRegistration,
    register_controller,
)
from metaquorum.quorum.raft.peers import NoPeers
from metaquorum.quorum.raft.voter import RaftVoter
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.metaquorum.quorum.storage.crash_disk import CrashDisk
from tests.metaquorum.quorum.storage.histories import CLUSTER

E = ErrorCode


class VirtualClock:
    def now_ms(self) -> int:
        return round(trio.current_time() * 1000)

    def monotonic(self) -> float:
        return trio.current_time()

    async def sleep_until(self, deadline: float) -> None:
        await trio.sleep_until(deadline)


class Quorum:
    """Controller with workers that consist only of their requests."""

    def __init__(self, disk: CrashDisk) -> None:
        self.loader = MetadataLoader(CLUSTER)
        clock = VirtualClock()
        self.voter = RaftVoter(
            disk, clock, Random(1), "/data/metadata", self.loader, 1, (1,), NoPeers()
        )
        self.controller = Controller(self.voter, self.loader, clock, Random(1), {})
        self.epochs: dict[int, int] = {}
        self.beating: dict[int, trio.CancelScope] = {}

    async def run(self, work: Callable[["Quorum"], Awaitable[None]]) -> None:
        await self.voter.start()
        async with trio.open_nursery() as self.nursery:
            self.nursery.start_soon(self.voter.run)
            self.nursery.start_soon(self.loader.run)
            await self.controller.start()
            self.nursery.start_soon(self.controller.run)
            await work(self)
            self.nursery.cancel_scope.cancel()
        await self.voter.close()

    async def register(
        self,
        worker_id: int,
        incarnation: int = 1,
        features: tuple[FeatureRange, ...] = SUPPORTED_FEATURES,
    ) -> int:
        worker = WorkerRegistration(
            worker_id,
            bytes([incarnation] * 16),
            (Endpoint("PLAINTEXT", "h", 9092, "PLAINTEXT"),),
            f"host-{worker_id}",
            features=features,
        )
        self.epochs[worker_id] = (
            await self.controller.worker_lifecycle.register_worker(worker)
        ).answer
        return self.epochs[worker_id]

    async def register_controller(self, controller: ControllerRegistration) -> None:
        await self.controller.change(lambda image: register_controller(image, controller))

    async def beat(self, worker_id: int, *, wants_shutdown: bool = False) -> HeartbeatAnswer:
        return await self.controller.worker_lifecycle.heartbeat(
            WorkerHeartbeat(
                worker_id, self.epochs[worker_id], self.loader.image.end_offset, wants_shutdown
            )
        )

    async def join(self, *worker_ids: int) -> None:
        """Register workers, wait until they are live, and let them send heartbeats."""
        for worker_id in worker_ids:
            await self.register(worker_id)
            assert not (await self.beat(worker_id)).is_fenced
            self.beating[worker_id] = trio.CancelScope()
            self.nursery.start_soon(self._keep_beating, worker_id)

    async def _keep_beating(self, worker_id: int) -> None:
        with self.beating[worker_id]:
            while True:
                await trio.sleep(2)
                await self.beat(worker_id)

    def fenced(self) -> set[int]:
        return self.loader.image.fenced_workers()

    def leaders(self, topic: str) -> list[int]:
        return [each.leader for each in self.loader.image.topics[topic].partitions]


def in_virtual_time(test: Callable[[Quorum], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(Quorum(CrashDisk()).run, test, clock=clock)

    run.__name__ = test.__name__
    return run


@in_virtual_time
async def test_topics_are_spread_over_the_workers_that_are_live(quorum: Quorum) -> None:
    (none,) = (await quorum.controller.create_topics([NewTopic("t")])).answer
    assert none.code is E.INVALID_REPLICATION_FACTOR
    await quorum.join(1, 2, 3)
    await quorum.register(4)  # never catches up
    await quorum.controller.create_topics([NewTopic("t", 6)])
    assert sorted(quorum.leaders("t")) == [1, 1, 2, 2, 3, 3]


@in_virtual_time
async def test_a_silent_worker_is_fenced_after_its_session_and_leads_again_when_it_is_back(
    quorum: Quorum,
) -> None:
    await quorum.join(1, 2)
    await quorum.controller.create_topics([NewTopic("t", 2, assignments=None)])
    epochs = [each.leader_epoch for each in quorum.loader.image.topics["t"].partitions]
    quorum.beating[1].cancel()
    await trio.sleep(8.9)
    assert quorum.fenced() == set()
    before = quorum.loader.image.end_offset
    await trio.sleep(2.2)
    assert quorum.fenced() == {1}
    assert sorted(quorum.leaders("t")) == [NO_LEADER, 2]
    assert quorum.loader.image.end_offset == before + 2  # heartbeats write no records
    assert (await quorum.beat(1)).is_fenced is False
    assert sorted(quorum.leaders("t")) == [1, 2]
    after = [each.leader_epoch for each in quorum.loader.image.topics["t"].partitions]
    assert sorted(b - a for a, b in zip(epochs, after, strict=True)) == [0, 2]
    (status, _) = await quorum.controller.worker_lifecycle.worker_statuses()
    assert status.worker_id == 1


@in_virtual_time
async def test_a_closed_connection_fences_after_its_grace_unless_it_is_made_again(
    quorum: Quorum,
) -> None:
    await quorum.join(1, 2)
    controller, incarnation = quorum.controller, bytes([1] * 16)
    controller.worker_lifecycle.connected(1, incarnation)
    controller.worker_lifecycle.disconnected(1, incarnation, is_evidence=True)
    await trio.sleep(RECONNECT_GRACE_S - 0.01)
    assert quorum.fenced() == set()
    controller.worker_lifecycle.connected(1, incarnation)
    await trio.sleep(1)
    assert quorum.fenced() == set()
    quorum.beating[1].cancel()
    controller.worker_lifecycle.disconnected(1, incarnation, is_evidence=True)
    await trio.sleep(RECONNECT_GRACE_S + 0.01)
    assert quorum.fenced() == {1}


def test_a_new_controller_fences_who_does_not_come_back() -> None:
    disk = CrashDisk()

    async def first(quorum: Quorum) -> None:
        await quorum.join(1, 2)
        await quorum.controller.create_topics([NewTopic("t", 4)])

    async def second(quorum: Quorum) -> None:
        image = quorum.loader.image
        quorum.epochs = {each: worker.broker_epoch for each, worker in image.workers.items()}
        await trio.sleep(0.3)
        assert not (await quorum.beat(1)).is_fenced
        await trio.sleep(0.29)
        assert quorum.fenced() == set()
        await trio.sleep(0.02)
        assert quorum.fenced() == {2}
        assert sorted(quorum.leaders("t")) == [NO_LEADER, NO_LEADER, 1, 1]

    for work in (first, second):
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(Quorum(disk).run, work, clock=clock)


@pytest.mark.parametrize("other_is_there", [False, True])
def test_who_comes_back_first_does_not_leave_the_isrs_to_who_does_not(
    *, other_is_there: bool
) -> None:
    disk = CrashDisk()

    async def first(quorum: Quorum) -> None:
        await quorum.join(1, 2)
        await quorum.controller.create_topics([NewTopic("t", 2, 2)])

    async def second(quorum: Quorum) -> None:
        controller, image = quorum.controller, quorum.loader.image
        quorum.epochs = {each: worker.broker_epoch for each, worker in image.workers.items()}
        if other_is_there:
            await quorum.beat(2)
        began = trio.current_time()
        anew = WorkerRegistration(
            1,
            b"anew" * 4,
            (),
            "host-1",
            previous_broker_epoch=quorum.epochs[1],
            features=SUPPORTED_FEATURES,
        )
        quorum.epochs[1] = (await controller.worker_lifecycle.register_worker(anew)).answer
        waited = trio.current_time() - began
        partitions = quorum.loader.image.topics["t"].partitions
        if other_is_there:
            assert waited < 0.1
            assert [each.isr for each in partitions] == [(2,), (2,)]
            return
        assert 0.5 < waited < 0.7
        assert [(each.isr, set(each.elr)) for each in partitions] == [((), {1, 2})] * 2
        assert quorum.fenced() == {1, 2}
        await quorum.beat(1)
        assert quorum.leaders("t") == [1, 1]
        again = trio.current_time()
        await controller.worker_lifecycle.register_worker(anew)
        assert trio.current_time() == again, "it is known already"

    for work in (first, second):
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(Quorum(disk).run, work, clock=clock)


@in_virtual_time
async def test_a_worker_that_shuts_down_gives_up_what_it_leads_and_is_told_when_to_go(
    quorum: Quorum,
) -> None:
    await quorum.join(1, 2)
    await quorum.controller.create_topics([NewTopic("t", 2)])
    quorum.beating[1].cancel()
    answer = await quorum.beat(1, wants_shutdown=True)
    assert not answer.should_shut_down  # worker 2 has not applied it yet
    assert sorted(quorum.leaders("t")) == [NO_LEADER, 2]
    assert quorum.loader.image.workers[1].in_controlled_shutdown
    await quorum.beat(2)
    answer = await quorum.beat(1, wants_shutdown=True)
    assert answer.should_shut_down
    assert answer.is_fenced
    assert quorum.fenced() == {1}
    await quorum.register(1, incarnation=2)  # at once: the id is free
    assert not (await quorum.beat(1)).is_fenced
    assert sorted(quorum.leaders("t")) == [1, 2]


@in_virtual_time
async def test_a_number_that_is_in_use_is_refused_until_its_worker_is_gone(quorum: Quorum) -> None:
    await quorum.join(1)
    old = quorum.epochs[1]
    with pytest.raises(KafkaError) as refused:
        await quorum.register(1, incarnation=2)
    assert refused.value.code is E.DUPLICATE_BROKER_REGISTRATION
    assert await quorum.register(1) == old  # the same process again
    quorum.beating[1].cancel()
    await trio.sleep(9.5)
    assert await quorum.register(1, incarnation=2) > old
    with pytest.raises(KafkaError) as stale:
        await quorum.controller.worker_lifecycle.heartbeat(WorkerHeartbeat(1, old, 99))
    assert stale.value.code is E.STALE_BROKER_EPOCH


@in_virtual_time
async def test_of_two_processes_that_register_at_once_one_is_refused(quorum: Quorum) -> None:
    outcomes: list[ErrorCode] = []

    async def register(incarnation: int) -> None:
        try:
            await quorum.register(1, incarnation)
            outcomes.append(E.NONE)
        except KafkaError as error:
            outcomes.append(error.code)

    async with trio.open_nursery() as nursery:
        for incarnation in (1, 1, 2):
            nursery.start_soon(register, incarnation)
    assert sorted(outcomes) in (
        [E.NONE, E.NONE, E.DUPLICATE_BROKER_REGISTRATION],
        [E.NONE, E.DUPLICATE_BROKER_REGISTRATION, E.DUPLICATE_BROKER_REGISTRATION],
    )


@in_virtual_time
async def test_to_register_again_is_a_sign_of_life(quorum: Quorum) -> None:
    await quorum.join(1)
    quorum.beating[1].cancel()
    await trio.sleep(8)
    await quorum.register(1)
    await trio.sleep(8)
    assert quorum.fenced() == set()


@in_virtual_time
async def test_a_worker_that_is_unregistered_is_unknown_and_may_come_back(quorum: Quorum) -> None:
    await quorum.join(1, 2)
    await quorum.controller.create_topics([NewTopic("t", 2)])
    quorum.beating[1].cancel()
    await quorum.beat(1)
    for seconds in (0.0, 8.9):
        await trio.sleep(seconds)
        with pytest.raises(KafkaError, match=r"Worker 1 is alive.* stop the worker") as alive:
            await quorum.controller.worker_lifecycle.unregister_worker(1)
        assert alive.value.code is E.INVALID_REQUEST
    await trio.sleep(0.2)
    assert quorum.fenced() == {1}
    await quorum.controller.worker_lifecycle.unregister_worker(1)
    assert sorted(quorum.leaders("t")) == [NO_LEADER, 2]
    for ask in (
        lambda: quorum.beat(1),
        lambda: quorum.controller.worker_lifecycle.unregister_worker(1),
    ):
        with pytest.raises(KafkaError) as unknown:
            await ask()
        assert unknown.value.code is E.BROKER_ID_NOT_REGISTERED
    await quorum.register(1, incarnation=2)
    await quorum.beat(1)
    assert sorted(quorum.leaders("t")) == [1, 2]


@in_virtual_time
async def test_a_fenced_worker_that_still_beats_is_not_unregistered(quorum: Quorum) -> None:
    """A worker is fenced but alive while it recovers its logs, for example."""
    await quorum.register(1)
    with pytest.raises(KafkaError) as alive:
        await quorum.controller.worker_lifecycle.unregister_worker(1)
    assert alive.value.code is E.INVALID_REQUEST
    await trio.sleep(9.1)
    await quorum.controller.worker_lifecycle.unregister_worker(1)
    assert quorum.loader.image.workers == {}


@in_virtual_time
async def test_a_process_that_has_ended_is_unregistered_without_a_wait(quorum: Quorum) -> None:
    await quorum.join(1, 2)
    quorum.beating[1].cancel()
    worker_lifecycle = quorum.controller.worker_lifecycle
    worker_lifecycle.connected(1, bytes([1] * 16))
    worker_lifecycle.disconnected(1, bytes([1] * 16), is_evidence=True)
    await trio.sleep(RECONNECT_GRACE_S + 0.05)
    await worker_lifecycle.unregister_worker(1)
    assert set(quorum.loader.image.workers) == {2}


def test_a_new_controller_unregisters_nobody_of_whom_it_may_hear_yet() -> None:
    disk = CrashDisk()

    async def first(quorum: Quorum) -> None:
        await quorum.join(1, 2)

    async def second(quorum: Quorum) -> None:
        await trio.sleep(0.7)
        assert quorum.fenced() == {1, 2}
        worker_lifecycle = quorum.controller.worker_lifecycle
        with pytest.raises(KafkaError) as perhaps:
            await worker_lifecycle.unregister_worker(1)
        assert perhaps.value.code is E.INVALID_REQUEST
        await trio.sleep(8.4)
        await worker_lifecycle.unregister_worker(1)
        assert set(quorum.loader.image.workers) == {2}

    for work in (first, second):
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(Quorum(disk).run, work, clock=clock)


@pytest.mark.parametrize(
    ("incarnation", "previous", "is_clean"),
    [
        (1, -1, True),  # the same process, with any `previous`
        (2, 0, True),  # another process with all records of the last registration
        (2, -1, False),  # as after a power loss
        (2, -2, False),  # the disk is in the state of an earlier registration
    ],
)
def test_whether_the_last_replica_has_all_is_told_by_the_registration_it_had(
    incarnation: int, previous: int, *, is_clean: bool
) -> None:
    """`previous` 0 means the broker epoch when it was unregistered, -2 the epoch before."""

    @in_virtual_time
    async def test(quorum: Quorum) -> None:
        earlier = await quorum.register(1, incarnation=7)
        await trio.sleep(9.1)  # its session has expired
        await quorum.join(1)
        await quorum.controller.create_topics([NewTopic("t", 1)])
        quorum.beating[1].cancel()
        await trio.sleep(9.1)
        await quorum.controller.worker_lifecycle.unregister_worker(1)
        epochs = {0: quorum.epochs[1], -2: earlier}
        anew = WorkerRegistration(
            1,
            bytes([incarnation] * 16),
            (),
            "host-1",
            features=SUPPORTED_FEATURES,
            previous_broker_epoch=epochs.get(previous, previous),
        )
        registered = await quorum.controller.worker_lifecycle.register_worker(anew)
        assert registered.answer > quorum.epochs[1] > earlier
        quorum.epochs[1] = registered.answer
        await quorum.beat(1)
        (partition,) = quorum.loader.image.topics["t"].partitions
        assert partition.leader == 1
        assert (partition.unclean_epoch == -1) == is_clean

    test()


@in_virtual_time
async def test_nobody_joins_who_cannot_run_at_the_clusters_levels(quorum: Quorum) -> None:
    too_new = (FeatureRange("metadata.version", 5, 6),)
    for features in ((), too_new):
        with pytest.raises(KafkaError) as refused:
            await quorum.register(1, features=features)
        assert refused.value.code is E.UNSUPPORTED_VERSION
        with pytest.raises(KafkaError) as refused:
            await quorum.register_controller(ControllerRegistration(2, bytes(16), "h", 1, features))
        assert refused.value.code is E.UNSUPPORTED_VERSION
    await quorum.register_controller(
        ControllerRegistration(2, bytes(16), "h", 1, SUPPORTED_FEATURES)
    )
    assert quorum.loader.image.controllers[2].host == "h"
    with pytest.raises(KafkaError, match="only supports versions 1-4") as refused:
        await quorum.controller.update_features([FeatureUpdate("metadata.version", 5)])
    assert refused.value.code is E.INVALID_UPDATE_VERSION
    unchanged = FeatureUpdate("metadata.version", 4, UpgradeType.UPGRADE)
    await quorum.controller.update_features([unchanged])
    await quorum.controller.update_features([unchanged], validate_only=True)


def test_a_process_that_was_killed_before_it_noted_its_epoch_has_lost_nothing() -> None:
    """Start marks with the previous epoch are accepted until the worker is live, not later."""

    @in_virtual_time
    async def test(quorum: Quorum) -> None:
        await quorum.join(1)
        await quorum.controller.create_topics([NewTopic("t", 1)])
        quorum.beating[1].cancel()
        noted = quorum.epochs[1]
        for incarnation, is_live_then in ((2, False), (3, True), (4, False)):
            await trio.sleep(9.1)
            anew = WorkerRegistration(
                1,
                bytes([incarnation] * 16),
                (),
                "host-1",
                previous_broker_epoch=noted,
                features=SUPPORTED_FEATURES,
            )
            registered = await quorum.controller.worker_lifecycle.register_worker(anew)
            quorum.epochs[1] = registered.answer
            if is_live_then:
                await quorum.beat(1)
                (partition,) = quorum.loader.image.topics["t"].partitions
                assert (partition.leader, partition.unclean_epoch) == (1, -1)
        await quorum.beat(1)
        (partition,) = quorum.loader.image.topics["t"].partitions
        assert partition.leader == 1
        assert partition.unclean_epoch == partition.leader_epoch, "the fourth has an old disk"

    test()


def test_workers_are_fenced_also_while_no_leader_can_be_elected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = 0

    def fail(*_: object) -> object:
        nonlocal tries
        tries += 1
        raise KafkaError(E.POLICY_VIOLATION, "Too large.")

    @in_virtual_time
    async def test(quorum: Quorum) -> None:
        await quorum.join(1, 2)
        monkeypatch.setattr(worker_lifecycle, "elect_leaders", fail)
        quorum.controller.worker_lifecycle._wants_election = True
        quorum.beating[1].cancel()
        await trio.sleep(12)
        assert tries > 1
        assert quorum.fenced() == {1}

    test()
