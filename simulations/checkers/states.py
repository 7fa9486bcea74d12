"""Invariants of single objects, as `check_invariants` of their classes states them.

A step is a call of a method that changes an object. Each object is checked after its steps, not
within them: those of the classes in `EACH` after every step, the others after one in `SPARSE`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from metaquorum.dataplane.coordinators.client_budget import ClientBudget
from metaquorum.dataplane.coordinators.group.classic_group import ClassicGroup
from metaquorum.dataplane.coordinators.transaction.transaction_shard import TransactionShard
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.quotas.rate_window import RateWindow
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.quorum.raft.progress import Progress
from metaquorum.simulations.kernel.comparing import Comparing
from metaquorum.simulations.kernel.mutation import swapped
from metaquorum.simulations.kernel.world import World

SPARSE: Final = 16

_Steps = tuple[type, tuple[str, ...], Callable[[Any], object]]


def _own(each: Any) -> None:
    each.check_invariants()


def _of_shard(shard: TransactionShard) -> None:
    for transaction in shard.transactions.values():
        transaction.check_invariants()


def _of_loader(loader: MetadataLoader) -> None:
    loader.image.check_invariants()


def _of_partition_and_log(partition: Partition) -> None:
    partition.check_invariants()
    partition.log.check_invariants()


# Steps after each of which the object is checked.
EACH: Final[tuple[_Steps, ...]] = (
    (Partition, ("assign", "cut_to"), _of_partition_and_log),
    (Progress, ("connected", "disconnected", "refused", "took_snapshot"), _own),
    (ClassicGroup, ("join", "sync", "committed", "leave"), _own),
)
# Steps of which one in SPARSE is checked.
SOME: Final[tuple[_Steps, ...]] = (
    (Partition, ("appended", "fetched_by", "advance", "follow_to", "wait_committed"), _own),
    (Progress, ("sent", "answered", "matched"), _own),
    (MetadataLoader, ("_take",), _of_loader),
    (PartitionLog, ("append", "append_as_follower", "advance_log_start", "roll"), _own),
    (TransactionShard, ("_apply",), _of_shard),
    (ClassicGroup, ("heartbeat",), _own),
    (ClientBudget, ("use",), _own),
    (RateWindow, ("use", "record", "change"), _own),
)


class StatesAreValid(Comparing):
    """No object contradicts itself after a step."""

    invariant = "I1"

    def look(self, each: object, check: Callable[[Any], object], step: str) -> None:
        self.comparisons += 1
        try:
            check(each)
        except AssertionError as error:
            at = error.__traceback__
            while at is not None and at.tb_next is not None:
                at = at.tb_next
            line = "?" if at is None else f"{at.tb_frame.f_code.co_qualname}:{at.tb_lineno}"
            self.world.violate(self.name, f"{line} after {step}: {error}")


@contextmanager
def checked_states(world: World) -> Iterator[None]:
    """Check objects after their steps while the block runs."""
    checker = StatesAreValid(world)
    within = 0  # steps that run

    def watched(name: str, check: Callable[[Any], object], every: int) -> Callable[[Any], Any]:
        def wrapped(right: Any) -> Any:
            count = 0

            def step(self: Any, *values: Any, **named: Any) -> Any:
                nonlocal count, within
                within += 1
                try:
                    result = right(self, *values, **named)
                finally:
                    within -= 1
                count += 1
                if not within and count % every == 0:
                    checker.look(self, check, name)
                return result

            return step

        return wrapped

    with ExitStack() as stack:
        for table, every in ((EACH, 1), (SOME, SPARSE)):
            for owner, names, check in table:
                for name in names:
                    text = f"{owner.__name__}.{name}"
                    stack.enter_context(swapped(owner, name, watched(text, check, every)))
        yield
