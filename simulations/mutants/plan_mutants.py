"""Mutants of plans of moves: throttles that stay, and partitions that do not leave their plan."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

from dataplane.quotas.replication_quota import ReplicationQuotas
from metaquorum.controller import reassignment
from simulations.kernel.mutation import Mutant, swapped


def _throttle_left_behind() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def limit_plans(self: Any, leader_rate: int, follower_rate: int) -> None:
            known = self._plan_rates
            right(self, min(leader_rate, known[0]), min(follower_rate, known[1]))

        return limit_plans

    return swapped(ReplicationQuotas, "limit_plans", wrong)


def _cancelled_stays_in_plan() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def cancelled(partition: Any, *rest: Any) -> Any:
            return replace(right(partition, *rest), plan=partition.plan)

        return cancelled

    return swapped(reassignment, "cancelled", wrong)


PLAN_MUTANTS: Final = tuple(
    Mutant(name, about, "planned-moves", found_as, apply)
    for name, about, found_as, apply in (
        (
            "throttle-left-behind",
            "a worker keeps the throttle of a plan after its last move",
            ("Q8",),
            _throttle_left_behind,
        ),
        (
            "cancelled-stays-in-plan",
            "a partition whose move is cancelled keeps its plan, and so its throttle",
            ("R11",),
            _cancelled_stays_in_plan,
        ),
    )
)
