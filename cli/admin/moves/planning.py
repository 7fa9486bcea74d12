"""Plans of moves, with what they cost."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

import click

from metaquorum.cli.admin.common.session import REFUSED, Session
from metaquorum.cli.admin.moves.options import ThrottleChoice
from metaquorum.client.move_plans.measuring import (
    NETWORK_CONFIG,
    WINDOW_CONFIGS,
    described_limits,
    measured_state,
)
from metaquorum.client.socket_transport import wait
from metaquorum.metadata.moves.cluster_state import ClusterState
from metaquorum.metadata.moves.estimate import (
    RESPONSE_CONFIG,
    Estimate,
    Limits,
    estimate,
    throttle_within,
    worker_traffic,
)
from metaquorum.metadata.moves.plan import Plan

_NO_PROPOSAL: Final = (
    f"No throttle is proposed: no worker describes its configs {NETWORK_CONFIG}, or"
    f" {RESPONSE_CONFIG} and {WINDOW_CONFIGS[0]}. Choose one with --throttle, --within or"
    " --network-bytes-per-s."
)


class MadePlan(NamedTuple):
    """A plan with its throttle, the cluster that it was made for, and its costs there."""

    plan: Plan
    state: ClusterState
    estimate: Estimate


def make_plan(
    session: Session, choose: Callable[[ClusterState], Plan], chosen: ThrottleChoice
) -> MadePlan:
    """Measure the cluster, choose targets in it, and estimate what their moves cost.

    Raises PlanError if no targets are possible. Exits if the throttle can never finish.
    """
    state = wait(measured_state(session.client, chosen.measure_s))
    plan = choose(state)
    silent = [worker.worker_id for worker in state.workers if not worker.answers]
    for worker_id in silent:
        session.note(
            f"Warning: worker {worker_id} did not answer DescribeLogDirs: the sizes of its"
            " partitions are those of other replicas."
        )
    limits = wait(described_limits(session.client, chosen.network_bytes_per_s, silent))
    found = priced(state, plan, chosen, limits)
    if found.refusal is not None:
        session.note(f"mq-admin: {found.refusal}")
        if found.proposed_bytes_per_s is not None:
            session.note(f"  --throttle {found.proposed_bytes_per_s} is proposed")
        click.get_current_context().exit(REFUSED)
    cluster_id = session.cluster.cluster_id
    return MadePlan(Plan(plan.moves, found.throttle_bytes_per_s, cluster_id), state, found)


def priced(state: ClusterState, plan: Plan, chosen: ThrottleChoice, limits: Limits) -> Estimate:
    """Return the estimate of the plan with the throttle that is chosen, or else proposed."""
    throttle = chosen.rate_bytes_per_s
    if chosen.within_s is not None:
        throttle = throttle_within(list(worker_traffic(state, plan).values()), chosen.within_s)
    found = estimate(state, plan, throttle, limits)
    if throttle is not None or chosen.is_unlimited:
        return found
    found = estimate(state, plan, found.proposed_bytes_per_s, limits)
    if found.throttle_bytes_per_s is None and found.copied_bytes and found.upper_bound is None:
        return replace(found, warnings=(*found.warnings, _NO_PROPOSAL))
    return found
