"""Throttles of plans of moves on one worker, derived from the metadata.

A plan with a rate throttles the replicas of the partitions that it moves, besides those in an
operator's lists:

    leader side      this worker has a replica that is not being added, or leads: reads by the
                     added replicas
    follower side    this worker's replica is being added

A replica that is being added may lead, once it is in sync and others of the target are not yet.

and this worker's rate on a side is the lowest of the operator's and those of the plans that
throttle a replica there. No config is written: the throttle ends with the metadata record that ends
the move of the last such partition. An operator's lists and rates stay as they are. DescribeConfigs
shows the rates of the plans next to them.
"""

from typing import Final

import trio

from metaquorum.dataplane.partition.partition import Partition, ReplicaContext
from metaquorum.dataplane.quotas.replication_quota import UNLIMITED, PlanLimits, ReplicationQuotas
from metaquorum.metadata.image import MetadataDelta, MetadataImage, MovePlanImage


class PlanThrottles:
    """Publisher that applies the rates of plans to this worker's quotas."""

    def __init__(self, context: ReplicaContext, quotas: ReplicationQuotas) -> None:
        self._context: Final = context
        self._quotas: Final = quotas
        self._topic_ids: frozenset[bytes] = frozenset()  # with partitions that are throttled

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if not delta.plan_ids and self._topic_ids.isdisjoint(delta.topic_ids):
            return
        rates: dict[int, int] = {}
        topic_ids: set[bytes] = set()
        limits: list[PlanLimits] = []
        for plan_id, plan in image.plans.items():
            rate = plan.header.rate_bytes_per_s
            if rate is None or not plan.moving:
                continue
            rates[plan_id] = rate
            topic_ids.update([topic_id for topic_id, _ in plan.moving])
            sends, receives = sides(image, plan, self._context.worker_id)
            if sends or receives:
                sides_rates = rate if sends else None, rate if receives else None
                limits.append(PlanLimits(plan_id, plan.header.owner, *sides_rates))
            await trio.lowlevel.checkpoint()
        self._topic_ids = frozenset(topic_ids)
        self._context.plan_rates = rates
        self._quotas.plan_limits = tuple(limits)
        self._quotas.limit_plans(
            min(
                (each.leader_rate for each in limits if each.leader_rate is not None),
                default=UNLIMITED,
            ),
            min(
                (each.follower_rate for each in limits if each.follower_rate is not None),
                default=UNLIMITED,
            ),
        )


def sides(image: MetadataImage, plan: MovePlanImage, worker_id: int) -> tuple[bool, bool]:
    """Return whether the plan moves partitions that the worker may send, or receives."""
    sends = receives = False
    for topic_id, number in plan.moving:
        topic = image.topic_by_id(topic_id)
        assert topic is not None, "a deleted topic has left its plan"
        state = topic.partitions[number]
        if worker_id in state.adding:
            receives = True
            sends = sends or worker_id == state.leader
        elif worker_id in state.replicas:
            sends = True
        if sends and receives:
            break
    return sends, receives


def sends_throttled(partition: Partition, replica_id: int) -> bool:
    """Return whether a plan throttles what the leader sends to that replica."""
    state = partition.state
    return state.plan in partition.plan_rates and replica_id in state.adding


def receives_throttled(partition: Partition) -> bool:
    """Return whether a plan throttles what this replica receives from its leader."""
    state = partition.state
    return state.plan in partition.plan_rates and partition.worker_id in state.adding
