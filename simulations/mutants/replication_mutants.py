"""Mutants of replication: bugs of other systems, or of this one until a seed found them."""

from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any, Final

import trio

from metaquorum.dataplane.fetch import reader
from metaquorum.dataplane.fetch.reader import FetchReader
from metaquorum.dataplane.handlers import produce
from metaquorum.dataplane.handlers.fetch import handler
from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
from metaquorum.dataplane.log.local_log import LocalLog
from metaquorum.dataplane.partition import batch_validation
from metaquorum.dataplane.partition.leader_state import LeaderState
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication import follower_state, replica_authentication, replica_manager
from metaquorum.dataplane.replication.isr_manager import IsrManager
from metaquorum.metadata.image import NO_LEADER, MetadataImage
from metaquorum.quorum.controller import worker_lifecycle, worker_registration
from metaquorum.quorum.controller.leaders import alter_partition, leader_selection
from metaquorum.simulations.kernel.mutation import Mutant, all_of, swapped
from metaquorum.wire.primitives.errors import ErrorCode, WireError


def _always(result: Any) -> Any:
    return lambda _: lambda *args, **kwargs: result


def _high_watermark_without_epoch() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def leader_error(self: Any, current_leader_epoch: int = -1) -> Any:
            return right(self)

        return leader_error

    return all_of(
        swapped(Partition, "leader_error", wrong),
        swapped(reader, "diverging_epoch", _always(None)),
    )


def _truncation_by_high_watermark() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def assign(self: Any, state: Any) -> None:
            is_news = state.leader_epoch != self.leader_epoch
            if is_news and state.leader not in (NO_LEADER, self.worker_id):
                self.leader_epoch = state.leader_epoch
                self.log.truncate_to(self.high_watermark)
            right(self, state)

        return assign

    return all_of(
        swapped(Partition, "assign", wrong),
        swapped(reader, "diverging_epoch", _always(None)),
    )


def _resumed_epoch() -> AbstractContextManager[None]:
    return swapped(worker_registration, "_restarted", _always(()))


def _election_outside_isr() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def elected(partition: Any, is_live: Any, *_: Any) -> int:
            for replica in (partition.leader, *partition.replicas):
                if leader_selection.may_lead(partition, replica, is_live):
                    return int(replica)
            return NO_LEADER

        return elected

    return swapped(leader_selection, "elected", wrong)


def _early_join() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def joins(self: Any, replica_id: int, high_watermark: int, eligible: Any) -> bool:
            follower = self.follower(replica_id)
            return (
                follower is not None
                and replica_id not in self.isr
                and follower.log_end_offset >= 0
                and eligible(replica_id, follower.broker_epoch)
            )

        return joins

    return swapped(LeaderState, "joins", wrong)


def _joins_without_fetch() -> AbstractContextManager[None]:
    return swapped(LeaderState, "_asks_to_join", _always(True))


def _replicated_read_past() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def end_offset(self: Any, partition: Any) -> int:
            return int(partition.log.log_end_offset)

        return end_offset

    return swapped(FetchReader, "end_offset", wrong)


def _ack_before_followers() -> AbstractContextManager[None]:
    return swapped(produce, "_ALL_ACKS", lambda _: None)


def _topic_resurrected() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def _is_stray(image: Any, at: tuple[str, int], plog: Any) -> bool:
            known = image.topic(at[0])
            if known is not None and plog is not None:
                plog.topic_id = known.topic_id
            return False

        return _is_stray

    return swapped(replica_manager, "_is_stray", wrong)


def _flush_without_sync() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        async def flush(self: Any, *args: Any) -> None:
            await trio.lowlevel.checkpoint()

        return flush

    return swapped(LocalLog, "flush", wrong)


def _min_isr_ignored() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def committed(self: Any, high: int, end: int, min_isr: int, *args: Any) -> Any:
            return right(self, high, end, 0, *args)

        return committed

    return swapped(LeaderState, "committed", wrong)


def _shrunk_before_committed() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def propose(self: Any, *args: Any) -> Any:
            change = right(self, *args)
            if change is not None:
                self.isr, self.proposed = change.isr, None
            return change

        return propose

    return swapped(LeaderState, "propose", wrong)


def _eligible_after_power_loss() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _eligible(before: Any, isr: Any, min_isr: int, *, lacking: Any = ()) -> Any:
            return right(before, isr, min_isr)

        return _eligible

    return swapped(leader_selection, "_eligible", wrong)


def _eligible_beside_enough() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _eligible(before: Any, isr: Any, min_isr: int, **lacking: Any) -> Any:
            return right(before, isr, len(before.replicas) if min_isr else 0, **lacking)

        return _eligible

    return swapped(leader_selection, "_eligible", wrong)


def _maximal_isr_ignored() -> AbstractContextManager[None]:
    return all_of(
        swapped(LeaderState, "maximal_isr", lambda _: property(lambda self: frozenset(self.isr))),
        # The leader also waits for joining replicas, which would nearly always hide the mutant.
        swapped(LeaderState, "_waits_for", _always(False)),
    )


def _stale_broker_epoch_accepted() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _refusal(image: Any, partition: Any, worker_id: int, epoch: int, change: Any) -> Any:
            unseen = (alter_partition.NO_EPOCH,) * len(change.broker_epochs)
            return right(image, partition, worker_id, epoch, replace(change, broker_epochs=unseen))

        return _refusal

    return swapped(alter_partition, "_refusal", wrong)


def _truncation_without_epochs() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def wanted(*args: Any) -> Any:
            return right(*args)._replace(last_fetched_epoch=follower_state.NO_EPOCH)

        return wanted

    return swapped(follower_state, "wanted", wrong)


def _blank_replica_leads() -> AbstractContextManager[None]:
    return swapped(worker_registration, "recreated", _always(None))


def _lost_tail_stays() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def restarted(*args: Any, **kwargs: Any) -> Any:
            return right(*args, **{**kwargs, "is_intact": True})

        return restarted

    return swapped(worker_registration, "restarted", wrong)


def _cut_without_record() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        async def _truncating(self: Any, cuts: Any) -> None:
            await trio.lowlevel.checkpoint()

        return _truncating

    return swapped(IsrManager, "_truncating", wrong)


def _claim_believed_without_proof() -> AbstractContextManager[None]:
    return swapped(replica_authentication, "claim_error", _always(ErrorCode.NONE))


def _broker_epoch_not_compared() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def fetch_claim_error(*args: Any) -> Any:
            error = right(*args)
            return ErrorCode.NONE if error is ErrorCode.STALE_BROKER_EPOCH else error

        return fetch_claim_error

    return swapped(handler, "fetch_claim_error", wrong)


def _first_broker_epoch_kept() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _broker_epoch(self: Any) -> int:
            return int(vars(self).setdefault("_first_broker_epoch", right(self)))

        return _broker_epoch

    return swapped(IsrManager, "_broker_epoch", wrong)


def _live_worker_unregistered() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def unregister_worker(image: Any, worker_id: int, *args: Any, **_: Any) -> Any:
            fenced = {
                each: replace(worker, fenced=True) if each == worker_id else worker
                for each, worker in image.workers.items()
            }
            return right(replace(image, workers=fenced), worker_id, *args)

        return unregister_worker

    return swapped(worker_lifecycle, "unregister_worker", wrong)


def _same_process_doubted() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def _has_all_of(worker: Any, last: Any) -> bool:
            return bool(worker.previous_broker_epoch == last.broker_epoch)

        return _has_all_of

    return swapped(worker_registration, "_has_all_of", wrong)


def _unregistered_forgotten() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        return lambda self, worker_id: self.workers.get(worker_id)

    return swapped(MetadataImage, "last_registration", wrong)


def _second_registration_not_noted() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def note_start(self: Any, broker_epoch: int) -> None:
            if not vars(self).setdefault("_noted", False):
                right(self, broker_epoch)
                self._noted = True

        return note_start

    return swapped(LogDirs, "note_start", wrong)


def _records_not_validated() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def check_records(*args: Any) -> Any:
            with suppress(WireError):
                yield from right(*args)

        return check_records

    return swapped(batch_validation, "check_records", wrong)


REPLICATION_MUTANTS: Final = tuple(
    Mutant(name, about, "replication", found_as, apply)
    for name, about, found_as, apply in (
        (
            "high-watermark-without-epoch",
            "a leader counts followers whose logs diverge from its own",
            ("R1", "R2"),
            _high_watermark_without_epoch,
        ),
        (
            "truncation-by-high-watermark",
            "a follower truncates to its high watermark for a new leader, as before KIP-101",
            ("R1", "R2", "R6", "R7"),
            _truncation_by_high_watermark,
        ),
        (
            "resumed-epoch",
            "a restarted worker continues to lead in its former leader epochs",
            ("R4",),
            _resumed_epoch,
        ),
        (
            "election-outside-isr",
            "the first live replica is elected, in sync or not",
            ("R3", "R9"),
            _election_outside_isr,
        ),
        (
            "early-join",
            "a follower joins the ISR before it has all committed records",
            ("R2", "R8"),
            _early_join,
        ),
        (
            "joins-without-fetch",
            "a follower that left the ISR joins it again by what it had fetched before",
            ("R8",),
            _joins_without_fetch,
        ),
        (
            "replicated-read-past",
            "consumers read up to the leader's log end offset",
            ("R5",),
            _replicated_read_past,
        ),
        (
            "ack-before-followers",
            "acks=all is acknowledged as soon as the leader has the batch",
            ("R6",),
            _ack_before_followers,
        ),
        (
            "topic-resurrected",
            "a worker that returns keeps the logs of topics deleted meanwhile",
            ("R10", "R5", "R2"),
            _topic_resurrected,
        ),
        (
            "flush-without-sync",
            "flush.messages does not sync",
            ("R6",),
            _flush_without_sync,
        ),
        (
            "min-isr-ignored",
            "the high watermark advances though fewer than min.insync.replicas are in sync",
            ("R5",),
            _min_isr_ignored,
        ),
        (
            "shrunk-before-committed",
            "a leader uses the ISR that it has proposed before the quorum commits it",
            ("R2", "R5"),
            _shrunk_before_committed,
        ),
        (
            "eligible-after-power-loss",
            "a replica stays eligible though its machine has lost power, or its disk",
            ("R2", "R6", "R7", "R8"),
            _eligible_after_power_loss,
        ),
        (
            "eligible-beside-enough",
            "a replica that leaves an ISR is eligible though enough are in sync to commit more",
            ("R2", "R6", "R7"),
            _eligible_beside_enough,
        ),
        (
            "maximal-isr-ignored",
            "a leader commits without replicas that the quorum may already have added to the ISR",
            ("R1", "R2"),
            _maximal_isr_ignored,
        ),
        (
            "truncation-without-epochs",
            "a follower does not send its leader the epoch of its last record",
            ("R1", "R2", "R7"),
            _truncation_without_epochs,
        ),
        (
            "blank-replica-leads",
            "a replica whose log was lost and starts empty stays in the ISR",
            ("R2", "R6", "R8"),
            _blank_replica_leads,
        ),
        (
            "lost-tail-stays",
            "a replica that was fenced and has lost the end of its log stays in the ISR",
            ("R2", "R6", "R8", "R9"),
            _lost_tail_stays,
        ),
        (
            "cut-without-record",
            "a follower truncates its log before the truncation ledger has the entry",
            ("R9",),
            _cut_without_record,
        ),
        (
            "claim-believed-without-proof",
            "a fetch that names a replica counts as that replica's without authentication",
            ("R1", "R2", "R5", "R6"),
            _claim_believed_without_proof,
        ),
        (
            "broker-epoch-not-compared",
            "a fetch of an authenticated worker counts with any broker epoch",
            ("R1", "R2", "R5", "R6"),
            _broker_epoch_not_compared,
        ),
        (
            "records-not-validated",
            "a leader accepts batches whose records contradict their headers",
            ("L4",),
            _records_not_validated,
        ),
    )
)

# Found only if a worker registers again at a certain moment, as in some crossings.
REGISTRATION_MUTANTS: Final = tuple(
    Mutant(name, about, "crossings", found_as, apply)
    for name, about, found_as, apply in (
        (
            "stale-broker-epoch-accepted",
            "a worker that restarted since its leader saw it joins the ISR, as before KIP-903",
            ("R2", "R8"),
            _stale_broker_epoch_accepted,
        ),
        (
            "first-broker-epoch-kept",
            "a worker that has registered again replicates with its first broker epoch",
            ("liveness",),
            _first_broker_epoch_kept,
        ),
        (
            "live-worker-unregistered",
            "a worker is unregistered even if it is live, as in Kafka",
            ("R12",),
            _live_worker_unregistered,
        ),
        (
            "same-process-doubted",
            "a process that registers again is treated as if it had lost power",
            ("R9",),
            _same_process_doubted,
        ),
        (
            "unregistered-forgotten",
            "the registration of an unregistered worker is forgotten completely",
            ("R9",),
            _unregistered_forgotten,
        ),
        (
            "second-registration-not-noted",
            "the start markers of log directories have only the first broker epoch of a process",
            ("R9",),
            _second_registration_not_noted,
        ),
    )
)
