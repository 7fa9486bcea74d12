"""Mutants that need one interleaving to have an effect.

Each removes one check and leaves the others. There are no mutants of checks that another check
repeats; comments in the shipped code name them.
"""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

import trio

from metaquorum.dataplane.handlers import produce, produce_outcome
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.partition.leader_state import LeaderState
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication import follower_state
from metaquorum.dataplane.replication.replica_fetcher import ReplicaFetcher
from metaquorum.metadata import loader
from metaquorum.quorum.controller.leaders import alter_partition
from metaquorum.runtime.interfaces import StorageError
from metaquorum.simulations.kernel.mutation import Mutant, swapped
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError


def _cut_for_another_leader() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        async def _cut(self: Any, key: Any, followed: Any, uncut: Any, cut: Any) -> bool:
            partition = followed.partition
            async with partition.appending:
                try:
                    if partition in uncut or not cut():
                        return False
                    with trio.CancelScope(shield=True):
                        await partition.flush(self._runtime.disk)
                except StorageError as error:
                    self._failed(followed, error)
                    return False
            return True

        return _cut

    return swapped(ReplicaFetcher, "_cut", wrong)


def _commit_of_another_epoch() -> AbstractContextManager[None]:
    return swapped(Partition, "leads_since", lambda _: lambda self, epoch: self.is_served)


def _uncommitted_not_awaited() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def _check_committed(partition: Any, leader_epoch: int, end_offset: int) -> None:
            if not partition.leads_since(leader_epoch):
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another leader")

        return _check_committed

    return swapped(produce_outcome, "_check_committed", wrong)


def _duplicate_not_awaited() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _append_now(*args: Any) -> Any:
            result = right(*args)
            return result._replace(last_offset=-1) if result.is_duplicate else result

        return _append_now

    return swapped(produce, "_append_now", wrong)


def _high_watermark_above_cut() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def truncate(partition: Any, *args: Any) -> Any:
            before = partition.high_watermark
            is_cut = right(partition, *args)
            partition.high_watermark = before
            return is_cut

        return truncate

    return swapped(follower_state, "truncate", wrong)


def _high_watermark_above_end() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        return lambda self, high_watermark: self._commit(high_watermark)

    return swapped(Partition, "follow_to", wrong)


def _unused_epochs_kept() -> AbstractContextManager[None]:
    return swapped(PartitionLog, "drop_unused_epochs", lambda _: lambda self: None)


def _older_isr_replaced() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _refusal(image: Any, partition: Any, worker_id: int, epoch: int, change: Any) -> Any:
            least = max(change.partition_epoch, partition.partition_epoch)
            changed = replace(change, partition_epoch=least)
            return right(image, partition, worker_id, epoch, changed)

        return _refusal

    return swapped(alter_partition, "_refusal", wrong)


def _fenced_in_isr() -> AbstractContextManager[None]:
    class _AllLive:
        def __init__(self, image: Any) -> None:
            self._image = image

        def __getattr__(self, name: str) -> Any:
            return getattr(self._image, name)

        def is_live(self, worker_id: int) -> bool:
            return worker_id in self._image.workers

    def wrong(right: Any) -> Any:
        return lambda image, *rest: right(_AllLive(image), *rest)

    return swapped(alter_partition, "_refusal", wrong)


def _joins_behind_epoch_start() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def joins(self: Any, replica_id: int, high_watermark: int, eligible: Any) -> bool:
            follower = self.follower(replica_id)
            return (
                follower is not None
                and replica_id not in self.isr
                and follower.log_end_offset >= high_watermark
                and eligible(replica_id, follower.broker_epoch)
            )

        return joins

    return swapped(LeaderState, "joins", wrong)


def _end_of_catching_up_told() -> AbstractContextManager[None]:
    return swapped(Partition, "is_catching_up", lambda _: property(lambda self: False))


def _queued_append_not_checked() -> AbstractContextManager[None]:
    """Skip the check after the queue only; the check at the arrival of a request stays."""

    def wrong(right: Any) -> Any:
        def check_append(self: Any, acks: int) -> None:
            if acks != produce._NO_ACKS or not self.appending.locked():
                right(self, acks)

        return check_append

    return swapped(Partition, "check_append", wrong)


def _deletions_missed() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def difference(before: Any, image: Any) -> Any:
            delta = await right(before, image)
            kept = [each for each in delta.topic_ids if image.topic_by_id(each) is not None]
            return replace(delta, topic_ids=dict.fromkeys(kept))

        return difference

    return swapped(loader, "difference", wrong)


CHECK_MUTANTS: Final = tuple(
    Mutant(name, about, "crossings", found_as, apply)
    for name, about, found_as, apply in (
        (
            "cut-for-another-leader",
            "a follower truncates its log although its leader changed after the request",
            ("R2", "R6", "R7"),
            _cut_for_another_leader,
        ),
        (
            "commit-of-another-epoch",
            "a batch of one epoch is acknowledged when another epoch's is committed at its offset",
            ("R6",),
            _commit_of_another_epoch,
        ),
        (
            "uncommitted-acknowledged",
            "a produce request with acks=all succeeds at its timeout, committed or not",
            ("R6",),
            _uncommitted_not_awaited,
        ),
        (
            "duplicate-not-awaited",
            "a batch that was sent again is acknowledged before it is committed",
            ("R6",),
            _duplicate_not_awaited,
        ),
        (
            "high-watermark-above-cut",
            "a follower that truncates its log keeps its high watermark",
            ("R1", "R2", "R5"),
            _high_watermark_above_cut,
        ),
        (
            "high-watermark-above-end",
            "a follower accepts a high watermark beyond the end of its log",
            ("R1", "R2", "R5", "R9"),
            _high_watermark_above_end,
        ),
        (
            "unused-epochs-kept",
            "a leader that wrote nothing keeps its epoch when it becomes a follower",
            ("R1", "R2", "R7", "liveness"),
            _unused_epochs_kept,
        ),
        (
            "older-isr-replaced",
            "an ISR that a leader proposed in an earlier state of the partition is accepted",
            ("R2", "R3", "R8"),
            _older_isr_replaced,
        ),
        (
            "fenced-in-isr",
            "a worker that is fenced joins an ISR",
            ("R2", "R8"),
            _fenced_in_isr,
        ),
        (
            "joins-behind-epoch-start",
            "a follower joins the ISR before it has the start of the leader's epoch (R8)",
            ("R2", "R8"),
            _joins_behind_epoch_start,
        ),
        (
            "end-of-catching-up-told",
            "a new leader returns its high watermark before it covers all committed records",
            ("R5",),
            _end_of_catching_up_told,
        ),
        (
            "queued-append-not-checked",
            "a queued batch is appended although leadership moved meanwhile",
            ("R4", "R7"),
            _queued_append_not_checked,
        ),
        (
            "deletions-missed",
            "a worker that loads a snapshot is not notified of deleted topics",
            ("R10", "M4"),
            _deletions_missed,
        ),
    )
)
