"""Checkers of plans of moves: partitions and plans agree, plans end, and so do their throttles."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from metaquorum.config.resolution import Configs
from metaquorum.dataplane.quotas.replication_quota import UNLIMITED, ReplicationQuotas
from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.metadata.records import PAUSED
from metaquorum.simulations.cluster.cluster_state import ClusterChecker
from metaquorum.simulations.kernel.mutation import swapped
from metaquorum.simulations.replication.replica_checkers import WatchingChecker

Rates = tuple[int, int]  # bytes per second as leader, as follower


class PlansHaveTheirPartitions(WatchingChecker):
    """A partition has the id of a plan if and only if it moves as a part of it, at each record."""

    invariant = "R11"

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        marked = {
            (topic.topic_id, index): state
            for topic in image.topics.values()
            for index, state in enumerate(topic.partitions)
            if state.plan
        }
        known = {key: plan_id for plan_id, plan in image.plans.items() for key in plan.moving}
        self.compare(
            {key: state.plan for key, state in marked.items()} == known,
            "the partitions of plans are {}, but the plans move {}",
            marked,
            known,
        )
        for key, state in marked.items():
            self.compare(state.is_moving, "{} has plan {} and does not move", key, state.plan)
        for plan_id in delta.plan_ids:
            plan = image.plans.get(plan_id)
            if plan is None:
                continue
            header = plan.header
            self.compare(
                header.begun == header.done + header.stopped + len(plan.moving)
                and header.begun <= header.moves
                and len(plan.moving) <= header.batch_size
                and not (plan.has_ended and plan.moving),
                "plan {} has {}, and moves {} partitions",
                plan_id,
                header,
                len(plan.moving),
            )
            was = before.plans.get(plan_id)
            if was is not None and was.header.state == header.state == PAUSED:
                self.compare(
                    was.header.begun == header.begun,
                    "plan {} is paused and begins a move: {}",
                    plan_id,
                    header,
                )
            if plan.has_ended and (was is None or not was.has_ended):
                self.cluster_state.world.count(f"plans {header.state}")
                self.cluster_state.world.count("moves of plans done", header.done)
                self.cluster_state.world.count("moves of plans stopped", header.stopped)


class PlansEnd(WatchingChecker):
    """Each plan ends within a bound after the faults, and all its throttles with it."""

    invariant = "Q8"

    def open_plans(self) -> list[str]:
        image = self.cluster_history.image
        open_plans = {plan_id: each for plan_id, each in image.plans.items() if not each.has_ended}
        return [f"plan {plan_id}: {plan.header}" for plan_id, plan in open_plans.items()]

    def throttles(self) -> list[str]:
        """Return the rates of workers that no plan explains; these worlds have no operator."""
        image = self.cluster_history.image
        if any(plan.moving for plan in image.plans.values()):
            return []
        found = []
        for member in self.cluster_state.workers:
            node = member.running
            if node is None or node.worker is None or member.supervisor.impaired:
                continue
            quotas = node.worker.isr_manager.quotas
            rates = [quotas.leader.rate_limit, quotas.follower.rate_limit]
            if rates != [UNLIMITED, UNLIMITED] or node.worker.isr_manager.context.plan_rates:
                found.append(f"worker {member.config.node_id} has rates {rates}")
        return found

    def finals(self) -> None:
        throttles = self.throttles()
        self.compare(not throttles, "throttles without a moving partition: {}", throttles)


class LowerRateHolds(WatchingChecker):
    """On each side of a worker the lower rate is in force: the operator's, or that of the plans.

    Right after each change of one of them.
    """

    invariant = "Q8"

    def limited(self, quotas: ReplicationQuotas, operator: Rates, plans: Rates) -> None:
        found = quotas.leader.rate_limit, quotas.follower.rate_limit
        self.compare(
            found == tuple(map(min, operator, plans)),
            "the rates {} of leader and follower are in force; the operator's are {}, those of the"
            " plans {}",
            found,
            operator,
            plans,
        )
        both = any(max(pair) < UNLIMITED for pair in zip(operator, plans, strict=True))
        self.cluster_state.world.count("rates of operators and plans together", both)


@contextmanager
def watched_rates(limited: Callable[[ReplicationQuotas, Rates, Rates], None]) -> Iterator[None]:
    """Report each change of rates: those of the operator and of the plans."""
    none = UNLIMITED, UNLIMITED
    operators: dict[ReplicationQuotas, Rates] = {}
    plans: dict[ReplicationQuotas, Rates] = {}

    def by_operator(right: Any) -> Any:
        def limit(self: ReplicationQuotas, configs: Configs) -> None:
            right(self, configs)
            leader, follower = (
                configs.integer(f"{side}.replication.throttled.rate")
                for side in ("leader", "follower")
            )
            operators[self] = leader, follower
            limited(self, operators[self], plans.get(self, none))

        return limit

    def by_plans(right: Any) -> Any:
        def limit_plans(self: ReplicationQuotas, *rates: int) -> None:
            right(self, *rates)
            leader, follower = rates
            plans[self] = leader, follower
            limited(self, operators.get(self, none), plans[self])

        return limit_plans

    with (
        swapped(ReplicationQuotas, "limit", by_operator),
        swapped(ReplicationQuotas, "limit_plans", by_plans),
    ):
        yield


PLAN_CHECKERS: Final[tuple[type[ClusterChecker], ...]] = (PlansHaveTheirPartitions, PlansEnd)
