"""Mutants of moves and of draining workers: rules of the controller and of the workers."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

import trio

from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication import replica_manager
from metaquorum.dataplane.replication.replica_manager import ReplicaManager
from metaquorum.metadata.image import NO_LEADER
from metaquorum.quorum.controller import reassignment, topics
from metaquorum.quorum.controller.leaders import leader_selection
from metaquorum.quorum.controller.leaders.leader_selection import nobody
from metaquorum.simulations.kernel.mutation import Mutant, all_of, swapped


def _removed_before_in_sync() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def moved(
            partition: Any, is_live: Any, before: Any = None, is_draining: Any = nobody
        ) -> Any:
            in_sync = [each for each in partition.target if each in partition.isr]
            if not in_sync or (partition.leader not in in_sync and not is_live(in_sync[0])):
                return right(partition, is_live, before, is_draining)
            whole = replace(partition, isr=(*in_sync, *partition.target))
            done = right(whole, lambda each: each in in_sync and is_live(each), before, is_draining)
            return partition if done is whole else replace(done, isr=tuple(in_sync))

        return moved

    return all_of(swapped(leader_selection, "moved", wrong), swapped(reassignment, "moved", wrong))


def _cancel_drops_originals() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def cancelled(partition: Any, is_live: Any, min_isr: int, *rest: Any) -> Any:
            after = right(partition, is_live, min_isr, *rest)
            target = partition.target
            if partition.leader not in target:
                return after
            isr = tuple([each for each in target if each in partition.isr])
            return replace(after, replicas=target, isr=isr, leader=partition.leader, elr=())

        return cancelled

    return swapped(reassignment, "cancelled", wrong)


def _ended_in_two_records() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def moved(
            partition: Any, is_live: Any, before: Any = None, is_draining: Any = nobody
        ) -> Any:
            done = right(partition, is_live, before, is_draining)
            if done is partition or not (partition.adding and partition.removing):
                return done
            return replace(partition, adding=())

        return moved

    return all_of(swapped(leader_selection, "moved", wrong), swapped(reassignment, "moved", wrong))


def _epoch_kept_at_removal() -> AbstractContextManager[None]:
    def ends(right: Any) -> Any:
        def moved(
            partition: Any, is_live: Any, before: Any = None, is_draining: Any = nobody
        ) -> Any:
            done = right(partition, is_live, before, is_draining)
            if done is partition or done.leader != (before or partition).leader:
                return done
            return replace(done, leader_epoch=(before or partition).leader_epoch)

        return moved

    return all_of(
        swapped(leader_selection, "moved", ends),
        swapped(reassignment, "moved", ends),
        swapped(reassignment, "left", lambda _: lambda before, after: after),
    )


def _earlier_target_dropped() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def requested(partition: Any, target: Any, is_live: Any, min_isr: int, *rest: Any) -> Any:
            after = right(partition, target, is_live, min_isr, *rest)
            if after is None:
                return None
            dropped = {*after.adding} & {*after.removing}
            if not dropped or after.leader in (*dropped, NO_LEADER):
                return after

            def kept(replicas: tuple[int, ...]) -> tuple[int, ...]:
                return tuple([each for each in replicas if each not in dropped])

            return replace(
                after,
                replicas=kept(after.replicas),
                isr=kept(after.isr),
                elr=kept(after.elr),
                adding=kept(after.adding),
                removing=kept(after.removing),
                leader_epoch=partition.leader_epoch + 1,
            )

        return requested

    return swapped(reassignment, "requested", wrong)


def _eligible_forgotten_at_a_request() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _with_replicas(partition: Any, min_isr: int) -> Any:
            return replace(right(partition, min_isr), elr=())

        return _with_replicas

    return swapped(reassignment, "_with_replicas", wrong)


def _removed_log_kept() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        async def _remove(self: Any, topics: Any) -> None:
            await trio.lowlevel.checkpoint()

        return _remove

    return swapped(ReplicaManager, "_remove", wrong)


def _moved_meanwhile_kept() -> AbstractContextManager[None]:
    return swapped(ReplicaManager, "_has_moved", lambda _: lambda *_: False)


def _adding_reported_as_lost() -> AbstractContextManager[None]:
    return swapped(replica_manager, "_has_nothing_yet", lambda _: lambda *_: False)


def _adding_counted_as_behind() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        return property(lambda self: self.is_leader and len(self.isr) < len(self.replicas))

    return swapped(Partition, "is_under_replicated", wrong)


MOVE_MUTANTS: Final = tuple(
    Mutant(name, about, "moving-partitions", found_as, apply)
    for name, about, found_as, apply in (
        (
            "removed-before-in-sync",
            "a move is complete once one replica of its target is in sync",
            ("R11",),
            _removed_before_in_sync,
        ),
        (
            "cancel-drops-originals",
            "a cancelled move leaves the replicas of the target, and removes the original ones",
            ("R11",),
            _cancel_drops_originals,
        ),
        (
            "ended-in-two-records",
            "the end of a move is two changes of the metadata: one of `adding`, one of the rest",
            ("R11",),
            _ended_in_two_records,
        ),
        (
            "epoch-kept-at-removal",
            "no leader epoch begins with a replica that leaves: its late fetches count",
            ("R2", "R9"),
            _epoch_kept_at_removal,
        ),
        (
            "earlier-target-dropped",
            "a new target removes the in-sync replicas of the one before at once",
            ("R11",),
            _earlier_target_dropped,
        ),
        (
            "eligible-forgotten-at-a-request",
            "a request to move a partition empties its ELR",
            ("R11",),
            _eligible_forgotten_at_a_request,
        ),
        (
            "removed-log-kept",
            "a worker keeps the log of a replica that has moved to another worker",
            ("R11",),
            _removed_log_kept,
        ),
        (
            "moved-meanwhile-kept",
            "a worker keeps the log of a replica that has moved while it was down",
            ("R11",),
            _moved_meanwhile_kept,
        ),
        (
            "adding-reported-as-lost",
            "a worker that was down when a replica was added reports its log as lost",
            ("R11",),
            _adding_reported_as_lost,
        ),
        (
            "adding-counted-as-behind",
            "replicas that a move adds count for the metric of under-replicated partitions",
            ("R11",),
            _adding_counted_as_behind,
        ),
    )
)


# Draining workers


def _replicas_on_draining() -> AbstractContextManager[None]:
    return swapped(topics, "draining_workers", lambda _: lambda image: [])


def _draining_elected() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _first_able(partition: Any, candidates: Any, is_live: Any, _: Any) -> Any:
            return right(partition, candidates, is_live, nobody)

        return _first_able

    return swapped(leader_selection, "_first_able", wrong)


DRAINING_MUTANTS: Final = tuple(
    Mutant(name, about, "moving-partitions", ("R14",), apply)
    for name, about, apply in (
        (
            "replicas-on-draining",
            "new partitions are placed on draining workers, too",
            _replicas_on_draining,
        ),
        (
            "draining-elected",
            "an election takes the first replica, also on a draining worker",
            _draining_elected,
        ),
    )
)
