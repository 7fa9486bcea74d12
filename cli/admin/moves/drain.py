"""Plan and start of moves that empty a draining worker, for `mq-admin workers drain --start`."""

from typing import Any

import click

from metaquorum.cli.admin.common.session import REFUSED, Session
from metaquorum.cli.admin.moves import shown_plan
from metaquorum.cli.admin.moves.options import ThrottleChoice
from metaquorum.cli.admin.moves.planning import make_plan
from metaquorum.cli.admin.moves.start import started
from metaquorum.client.errors import AdminError
from metaquorum.metadata.moves import balance as balancing
from metaquorum.metadata.moves.plan import PlanError
from metaquorum.wire.primitives.errors import KafkaError


def start_drain(
    session: Session, worker: int, chosen: ThrottleChoice, batch_size: int
) -> dict[str, Any]:
    """Start a plan that empties the worker, and print it; return both for programs.

    The id of the plan is None if the worker has no replica. Exits if none of its replicas can move.
    """
    try:
        return _started(session, worker, chosen, batch_size)
    except (KafkaError, AdminError, click.ClickException, click.exceptions.Exit):
        session.note(
            f"worker {worker} keeps draining, but this command has started no move;"
            f" `mq-admin workers return {worker}` ends the drain"
        )
        raise


def _started(
    session: Session, worker: int, chosen: ThrottleChoice, batch_size: int
) -> dict[str, Any]:
    try:
        made = make_plan(session, lambda state: balancing.drain(state, [worker]), chosen)
    except PlanError as error:
        raise click.UsageError(str(error)) from None
    stay = balancing.staying(made.state, [worker])
    if stay and not made.plan.moves:
        session.note(
            f"mq-admin: no replica of worker {worker} can move now: {len(stay)} partitions, such as"
            f" {stay[0].name}, have no leader, or are moving already"
        )
        session.note(
            "  `mq-admin moves status` shows the plans that run; repeat the command when they have"
            " ended"
        )
        click.get_current_context().exit(REFUSED)
    if session.output == "text":
        shown_plan.show(made)
    shown_plan.note_warnings(session, made, [worker])
    plan_id = None
    if made.plan.moves:
        session.say("")
        plan_id = started(session, made.plan, made.plan.throttle_bytes_per_s, batch_size)
    return {**shown_plan.data(made), "plan": plan_id}
