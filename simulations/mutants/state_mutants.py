"""Mutants of which a client sees nothing at first: an object contradicts itself.

`StatesAreValid` (I1) finds them by the `check_invariants` of the object's class, long before a
rarer event makes something wrong of the contradiction.
"""

from collections import deque
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

from metaquorum.dataplane.coordinators.client_budget import ClientBudget
from metaquorum.dataplane.coordinators.group.members import GroupMembers
from metaquorum.dataplane.coordinators.transaction.transaction import Transaction
from metaquorum.dataplane.log.local_log import LocalLog
from metaquorum.dataplane.log.segments.epochs import LeaderEpochs
from metaquorum.dataplane.log.segments.producers import ProducerStateTable
from metaquorum.dataplane.partition.leader_state import LeaderState
from metaquorum.dataplane.quotas.rate_window import RateWindow
from metaquorum.metadata.replay import Replay
from metaquorum.quorum.raft.progress import Progress
from metaquorum.simulations.kernel.mutation import Mutant, all_of, swapped


def _kept(owner: Any, method: str, *names: str) -> AbstractContextManager[None]:
    """Let a method leave these attributes of its object as they were."""

    def wrong(right: Any) -> Any:
        def step(self: Any, *values: Any, **named: Any) -> Any:
            before = [(name, getattr(self, name)) for name in names]
            before = [(n, v.copy() if isinstance(v, deque) else v) for n, v in before]
            result = right(self, *values, **named)
            for name, value in before:
                setattr(self, name, value)
            return result

        return step

    return swapped(owner, method, wrong)


def _proposal_kept() -> AbstractContextManager[None]:
    return _kept(LeaderState, "assign", "proposed")


def _answered_bytes_kept() -> AbstractContextManager[None]:
    return _kept(Progress, "answered", "_in_flight_bytes")


def _partitions_counted_for_ever() -> AbstractContextManager[None]:
    return _kept(Replay, "_remove_topic", "_partition_count")


def _client_numbers_kept() -> AbstractContextManager[None]:
    return swapped(ClientBudget, "_forget_number", lambda right: lambda self, client: None)


def _metadata_of_members_kept() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def count(self: Any, member: Any, by: int) -> None:
            before = self.metadata_bytes
            right(self, member, by)
            self.metadata_bytes = max(before, self.metadata_bytes)

        return count

    return swapped(GroupMembers, "_count", wrong)


def _own_epoch_kept() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def end_transaction(self: Any, header: Any, *rest: Any) -> Any:
            before = self.entries.get(header.producer_id)
            has_own_epoch = before is not None and before.has_own_epoch
            result = right(self, header, *rest)
            self.entries[header.producer_id].has_own_epoch = has_own_epoch
            return result

        return end_transaction

    return swapped(ProducerStateTable, "end_transaction", wrong)


def _partitions_after_the_end() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def completed(self: Any, now_ms: int) -> Any:
            return replace(right(self, now_ms), partitions=self.partitions)

        return completed

    return swapped(Transaction, "completed", wrong)


def _recovery_point_kept() -> AbstractContextManager[None]:
    return all_of(
        _kept(LocalLog, "_distrust_from", "recovery_point"),
        _kept(LocalLog, "_end_files_at", "recovery_point"),
    )


def _latest_epoch_kept() -> AbstractContextManager[None]:
    return _kept(LeaderEpochs, "truncate_from_end", "latest")


def _short_samples() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def record(self: Any, amount: float, now: float) -> None:
            self._sample_s /= 2
            right(self, amount, now)
            self._sample_s *= 2

        return record

    return swapped(RateWindow, "record", wrong)


STATE_MUTANTS: Final = tuple(
    Mutant(name, about, scenario, ("I1",), apply)
    for name, scenario, about, apply in (
        (
            "proposal-kept",
            "replication",
            "a proposed ISR stays proposed after a change of the partition in the metadata",
            _proposal_kept,
        ),
        (
            "answered-bytes-kept",
            "quorum",
            "bytes that a voter has acknowledged still count as in flight",
            _answered_bytes_kept,
        ),
        (
            "partitions-counted-for-ever",
            "quorum",
            "the partitions of a deleted topic stay in the number of partitions",
            _partitions_counted_for_ever,
        ),
        (
            "client-numbers-kept",
            "groups",
            "a client without state in a budget keeps its number",
            _client_numbers_kept,
        ),
        (
            "metadata-of-members-kept",
            "groups",
            "the metadata of members that have left count towards the limit of their group",
            _metadata_of_members_kept,
        ),
        (
            "own-epoch-kept",
            "transactions",
            "a producer keeps the mark that its transaction has an epoch of its own",
            _own_epoch_kept,
        ),
        (
            "partitions-after-the-end",
            "transactions",
            "a completed transaction keeps its partitions",
            _partitions_after_the_end,
        ),
        (
            "recovery-point-kept",
            "replication",
            "after a truncation, the recovery point is beyond the end of the log",
            _recovery_point_kept,
        ),
        (
            "latest-epoch-kept",
            "replication",
            "after a truncation, the latest leader epoch is that of removed records",
            _latest_epoch_kept,
        ),
        (
            "short-samples",
            "quotas",
            "samples of a rate are half as long as configured, and the window with them",
            _short_samples,
        ),
    )
)
