"""Fault of copies between log directories: a log loses records that its copy has.

A move between directories lasts a few milliseconds, and few logs are truncated, so that single
faults at random times do not combine in this way. The fault is a sequence:

    a leader is cut off and replaced; it appends clients' records that no other replica gets
    a copy of its log begins, and waits for its quota once it has some of these records
    the leader is connected again, and truncates its log, or its power is cut before

Without power, the log may lose these records, while the kernel has written those of the copy.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import trio

from metaquorum.dataplane.log.dirs.moved_logs import UnfinishedMove
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.quotas.replication_quota import ReplicationQuota
from metaquorum.dataplane.replication import log_dir_mover
from metaquorum.dataplane.replication.log_dir_mover import LogDirMover, Move
from metaquorum.runtime.interfaces import sleep
from metaquorum.simulations.cluster.cluster_state import Member
from metaquorum.simulations.cluster.faults import ActiveFault, FaultFunction, stop_machine
from metaquorum.simulations.kernel.mutation import swapped
from metaquorum.simulations.replication.replica_faults import (
    CUT_WITHIN_S,
    REPLACED_WITHIN_S,
    ReplicaFaults,
)
from metaquorum.simulations.replication.replicas import PartitionHistory
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState

COPIED_TAIL: Final = "copied tail"
# Timeouts of the waits for records that no other replica has, and then for a copy of some of them.
WRITTEN_WITHIN_S: Final = 2.0
TAIL_RECORDS: Final = 4
COPIED_WITHIN_S: Final = 1.0
# Timeout of the wait for a truncated log to be longer than its copy.
GROWN_WITHIN_S: Final = 3.0
LOOK_S: Final = 0.0003
POWER: Final = 0.65  # share of the faults that cut the leader's power
_HELD_BYTES: Final = 1 << 40
_FASTEST: Final = 10**9


class CopyFaults(ReplicaFaults):
    """Faults of replicas, and `copied_tail`."""

    def __init__(self, cluster_state: ReplicatedClusterState) -> None:
        super().__init__(cluster_state)
        self._turn = trio.Lock()  # one at a time: each needs the other nodes

    def kinds_with_copies(self) -> Mapping[str, FaultFunction]:
        return {**self.kinds, COPIED_TAIL: self.copied_tail}

    async def copied_tail(self, fault: ActiveFault) -> None:
        """Take records from a log whose copy has them."""
        async with self._turn:
            await self._copied_tail(fault)

    async def _copied_tail(self, fault: ActiveFault) -> None:
        leading = [
            member
            for member in self._cluster_state.workers
            if member.running is not None and self._led_with_others(member)
        ]
        if not leading:
            return
        member = max(leading, key=lambda one: len(self._led_with_others(one)))
        led = self._led_with_others(member)
        pairs = await self._replace_leader(fault, member)
        with trio.move_on_after(REPLACED_WITHIN_S):
            while led & self._led_with_others(member):
                await fault.world.sleep(0.02)
        led -= self._led_with_others(member)  # those that another worker leads now
        with trio.move_on_after(WRITTEN_WITHIN_S):
            while led and not self._written(member, led):
                await fault.world.sleep(0.02)
        # A copy is nearly complete with the last batch only, and is made batch by batch.
        with (
            swapped(log_dir_mover, "STEP_BYTES", lambda _: 1),
            swapped(log_dir_mover, "SWAP_BYTES", lambda _: 1),
        ):
            await self._take_tail(fault, member, self._written(member, led), pairs)

    async def _take_tail(
        self,
        fault: ActiveFault,
        member: Member,
        written: list[PartitionHistory],
        pairs: list[tuple[str, str]],
    ) -> None:
        node = member.running
        worker = None if node is None else node.worker
        if worker is None:
            self._heal(fault, pairs)
            return
        quota, monotonic = worker.log_dir_mover.quota, worker.log_dir_mover.monotonic
        rate = quota.rate_limit
        _limit(quota, _FASTEST, monotonic())
        moves = self._moves(member, written)
        held: list[Move] = []
        with trio.move_on_after(COPIED_WITHIN_S):
            while moves and not held and member.running is node:
                held = [move for history, move in moves if self._has_tail(member, history, move)]
                await fault.world.sleep(0.0 if held else LOOK_S)
        if not held or member.running is not node:
            if member.running is node:
                _limit(quota, rate, monotonic())
            self._heal(fault, pairs)
            return
        quota.limit(1, monotonic())
        quota.record(_HELD_BYTES, monotonic())
        fault.count()
        if fault.draw.random() < POWER:
            storage = member.supervisor.machine.storage
            for move in held:
                storage.sync_dir(move.target.path)
                storage.sync_dir(move.future.folder)
                for inode in storage.files(move.future.folder).values():
                    inode.sync()
            stop_machine(fault, member.supervisor, "power")
            self._heal(fault, pairs)
            return
        ends = self._ends(member)
        self._heal(fault, pairs)
        with trio.move_on_after(CUT_WITHIN_S):
            while not self._have_been_cut(member, ends) and member.running is node:
                ends = self._ends(member)
                await fault.world.sleep(0.002)
        with trio.move_on_after(GROWN_WITHIN_S):
            while member.running is node and any(move.lag == 0 for move in held):
                await fault.world.sleep(0.02)
        if member.running is node:
            _limit(quota, rate, monotonic())

    def _moves(
        self, member: Member, written: list[PartitionHistory]
    ) -> list[tuple[PartitionHistory, Move]]:
        """Begin to move the logs to the other directories; return the moves."""
        assert member.running is not None
        assert member.running.worker is not None
        mover = member.running.worker.log_dir_mover
        found = []
        for history in written:
            at = history.topic, history.place.partition
            log_dir = member.running.worker.replica_manager.log_dirs.dir_of(at)
            if log_dir is None:
                continue
            other = next(path for path in member.log_dirs if path != log_dir.path)
            mover.alter(*at, other)
            if (move := mover.moves.get(at)) is not None:
                found.append((history, move))
        return found

    def _others_end(self, member: Member, history: PartitionHistory) -> int:
        worker_id = member.config.node_id
        others = [each.end for key, each in history.replicas.items() if key != worker_id]
        return max(others, default=0)

    def _written(self, member: Member, led: set[PartitionHistory]) -> list[PartitionHistory]:
        """Return the partitions of which this worker's log has records that no other has."""
        own = self._ends(member)
        return [
            history
            for history in sorted(led, key=str)
            if own.get(history, 0) >= self._others_end(member, history) + TAIL_RECORDS
        ]

    def _has_tail(self, member: Member, history: PartitionHistory, move: Move) -> bool:
        """Return whether the copy is incomplete and has records that no other replica has."""
        end = move.future.log_end_offset
        return (
            move.started_for >= 0
            and self._others_end(member, history) < end < move.log.log_end_offset
        )


@contextmanager
def slow_recovery_of_copies() -> Iterator[None]:
    """Let the recovery of a copy last until its log is longer, as the scan of a large copy may."""

    def slow(right: Any) -> Any:
        async def _recover(self: LogDirMover, unfinished: UnfinishedMove) -> PartitionLog | None:
            copy: PartitionLog | None = await right(self, unfinished)
            deadline = self.monotonic() + GROWN_WITHIN_S
            while copy is not None and self.monotonic() < deadline:
                log = self._log_dirs.log(unfinished.partition)
                if log is None or log.log_end_offset > copy.log_end_offset:
                    break
                await sleep(self._clock, 0.02)
            return copy

        return _recover

    with swapped(LogDirMover, "_recover", slow):
        yield


def _limit(quota: ReplicationQuota, rate: int, now: float) -> None:
    """Change the rate, and forget the bytes that were recorded."""
    quota.limit(0, now)
    quota.limit(rate, now)
