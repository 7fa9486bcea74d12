"""Mutants of plans of moves: their partitions, their batches, their pauses and their throttles."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

from metaquorum.dataplane.quotas.replication_quota import UNLIMITED, ReplicationQuotas
from metaquorum.quorum.controller import reassignment
from metaquorum.quorum.controller.plans import move_plans
from metaquorum.simulations.kernel.mutation import Mutant, swapped


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


def _batch_exceeded() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _beginning(image: Any, plan: Any) -> Any:
            size = plan.header.batch_size
            larger = replace(plan, header=replace(plan.header, batch_size=size + 1))
            decision = right(image, larger)
            if not decision.records:
                return decision
            header, *rest = decision.records
            return replace(decision, records=[replace(header, batch_size=size), *rest])

        return _beginning

    return swapped(move_plans, "_beginning", wrong)


def _pause_ignored() -> AbstractContextManager[None]:
    return swapped(move_plans, "PAUSED", lambda _: "")


def _rate_of_operator_ignored() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        def _limit(self: Any) -> None:
            quotas = self.leader, self.follower
            for quota, operator, plan in zip(
                quotas, self._operator_rates, self._plan_rates, strict=True
            ):
                rate = operator if plan == UNLIMITED else plan
                if rate != quota.rate_limit:
                    quota.limit(rate, self.monotonic())

        return _limit

    return swapped(ReplicationQuotas, "_limit", wrong)


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
        (
            "batch-exceeded",
            "one move more than the batch size of the plan is in progress",
            ("R11",),
            _batch_exceeded,
        ),
        (
            "pause-ignored",
            "moves of a plan begin although it is paused",
            ("R11",),
            _pause_ignored,
        ),
        (
            "rate-of-operator-ignored",
            "the rate of a plan is in force, also if that of the operator is lower",
            ("Q8",),
            _rate_of_operator_ignored,
        ),
    )
)
