"""Random histories of a partition that moves: R11, no committed record is lost, and moves end."""

from dataclasses import replace
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.image import NO_LEADER, PartitionImage
from metaquorum.metadata.records import MetadataRecord, RecordEncoder
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.leaders.alter_partition import PartitionChange, alter_partition
from metaquorum.quorum.controller.leaders.elect_leaders import (
    ElectionSpec,
    ElectionType,
    elect_leader,
)
from metaquorum.quorum.controller.leaders.eligible_leaders import min_isr
from metaquorum.quorum.controller.leaders.leader_selection import least_isr
from metaquorum.quorum.controller.reassignment import Reassignment, reassign
from metaquorum.quorum.controller.worker_registration import (
    elect_leaders,
    fence_workers,
    lose_log,
    register_worker,
    shut_down_worker,
    unfence_worker,
    unregister_worker,
)
from metaquorum.wire.primitives.errors import KafkaError
from tests.examples import examples
from tests.metaquorum.quorum.controller.test_reassignment import TOPIC_ID, founded
from tests.metaquorum.quorum.storage.histories import registration

WORKERS: Final = (1, 2, 3, 4, 5)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("move", "move", "move", "cancel", "commit", "commit", "join", "join", "join"),
                *("leave", "fence", "fence two", "unfence", "unfence", "restart", "shut down"),
                *("prefer", "lose log", "unregister"),
            )
        ),
        st.sampled_from(WORKERS),
        st.lists(st.sampled_from(WORKERS), min_size=1, max_size=4, unique=True),
    ),
    min_size=20,
    max_size=60,
)


class Moving:
    """Model of one partition: the replicas with all committed records, and the asked target."""

    def __init__(self, least: int) -> None:
        self.image = founded(least, workers=max(WORKERS))
        self.have_all = {*self.state.replicas}
        self.original = self.target = self.state.replicas
        self.processes = 0

    @property
    def state(self) -> PartitionImage:
        return self.image.topics["t"].partitions[0]

    def take(self, what: str, worker_id: int, target: list[int]) -> None:
        """Apply one event, if it is possible now."""
        before = self.state
        try:
            records = self._records(what, worker_id, tuple(target))
        except KafkaError:
            return
        self._apply(records)
        self._apply(elect_leaders(self.image).all_records())
        after = self.state
        if not {*before.replicas} <= {*after.replicas} and after.leader != NO_LEADER:
            assert after.leader_epoch > before.leader_epoch, "progress of replicas that left"
        if what == "move":
            self.target = tuple(target)
            self.check_copies(before, after)
        if what == "cancel" and records:
            assert not after.is_moving
            assert {*after.replicas} == {*self.original}
            self.target = after.replicas
        if what == "join" and records:
            self.check_copies(before, after)
        if not after.is_moving:
            self.original = after.replicas
        self.have_all &= {*after.replicas}  # a worker deletes the log of a replica that left
        self.check()

    def _apply(self, records: list[MetadataRecord]) -> None:
        encoder = RecordEncoder(self.image.features)
        for record in records:
            encoder.encode(record)
        self.image, _ = replay(self.image, records)

    def _records(self, what: str, worker_id: int, target: tuple[int, ...]) -> list[MetadataRecord]:
        image, before = self.image, self.state
        epoch = image.broker_epoch(worker_id)
        match what:
            case "move" | "cancel":
                asked = Reassignment("t", 0, target if what == "move" else None)
                decision = reassign(image, asked)
                if decision.answer is not None:
                    raise decision.answer
                return decision.all_records()
            case "commit":
                needed = least_isr(before, min_isr(image, "t"))
                if before.leader != NO_LEADER and len(before.isr) >= needed:
                    self.have_all = {*before.isr}  # the fewest replicas with the new records
                return []
            case "join":
                return self.joined(worker_id)
            case "leave":
                return self._isr({*before.isr} - {worker_id})
            case "fence":
                return fence_workers(image, {worker_id}).all_records()
            case "fence two":
                return fence_workers(image, {worker_id, target[0]}).all_records()
            case "unfence":
                return unfence_worker(image, worker_id, epoch).all_records()
            case "restart":
                self.processes += 1
                last = image.last_registration(worker_id)
                assert last is not None
                process = replace(
                    registration(worker_id, self.processes), previous_broker_epoch=last.broker_epoch
                )
                return register_worker(image, process).all_records()
            case "shut down":
                return shut_down_worker(image, worker_id, epoch).all_records()
            case "unregister":
                return unregister_worker(image, worker_id).all_records()
            case "prefer":
                spec = ElectionSpec("t", 0, ElectionType.PREFERRED)
                return elect_leader(image, spec).all_records()
            case _:
                return lose_log(image, worker_id, epoch, (TOPIC_ID, 0)).all_records()

    def joined(self, worker_id: int) -> list[MetadataRecord]:
        """Return the records of a follower that has fetched the leader's whole log."""
        before = self.state
        records = self._isr({*before.isr, worker_id})
        if records and before.leader in self.have_all:
            self.have_all.add(worker_id)
        return records

    def _isr(self, isr: set[int]) -> list[MetadataRecord]:
        before = self.state
        change = PartitionChange(
            TOPIC_ID,
            0,
            before.leader_epoch,
            before.partition_epoch,
            tuple(isr),
            tuple([-1] * len(isr)),
        )
        epoch = self.image.broker_epoch(before.leader)
        return alter_partition(self.image, before.leader, epoch, change).all_records()

    def check_copies(self, before: PartitionImage, after: PartitionImage) -> None:
        """Check R11: a step of a move ends with as many copies as before, or as the target has."""
        assert len(after.isr) >= min(len(before.isr), len(after.target))
        assert len(after.isr) + len(after.elr) >= min(
            len(before.isr) + len(before.elr), len(after.target)
        ) or len(after.isr) >= least_isr(after, min_isr(self.image, "t"))

    def check(self) -> None:
        """Check what holds after each record."""
        after = self.state
        assert after.unclean_epoch == -1
        assert {*after.isr, *after.elr} <= self.have_all
        assert after.isr or after.elr or after.last_leader != NO_LEADER
        assert len({*after.replicas}) == len(after.replicas)
        for part in (after.isr, after.elr, after.offline, after.blank, after.adding):
            assert {*part} <= {*after.replicas}
        assert after.removing == after.replicas[len(after.target) :]
        assert after.target == self.target
        if after.is_moving:
            assert {*after.replicas} - {*after.adding} == {*self.original}
            assert not after.isr or not {*after.target} <= {*after.isr} or not self._may_lead()
        else:
            assert after.replicas == self.target
        assert after.leader == NO_LEADER or after.leader in after.isr
        assert after.last_leader in (NO_LEADER, *after.replicas)

    def _may_lead(self) -> bool:
        return any(
            self.image.is_live(each) and each not in self.state.offline for each in self.target
        )

    def heal(self) -> None:
        """End all faults, and let each replica catch up with the leader once."""
        for worker_id in WORKERS:
            self.take("restart", worker_id, [worker_id])
            self.take("unfence", worker_id, [worker_id])
        for worker_id in self.state.replicas:
            self.take("join", worker_id, [worker_id])


@examples(200)
@given(STEPS, st.integers(1, 3))
def test_a_moving_partition_keeps_its_records_and_copies_and_arrives(
    steps: list[tuple[str, int, list[int]]], least: int
) -> None:
    moving = Moving(least)
    for what, worker_id, target in steps:
        moving.take(what, worker_id, target)
    moving.heal()
    after = moving.state
    assert (after.replicas, after.is_moving) == (moving.target, False)
    assert {*after.isr} == {*after.replicas}
    assert moving.have_all == {*after.replicas}
