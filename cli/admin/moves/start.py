"""mq-admin moves start: gives the cluster a plan to carry out."""

from typing import TextIO

import click

from metaquorum.cli.admin.common.session import INT64_MAX, Session, session_command
from metaquorum.cli.admin.moves.options import batch_option
from metaquorum.cli.common.empty_values import InputFile
from metaquorum.cli.common.output import size_text
from metaquorum.metadata.moves.plan import Plan, PlanError, read_plan


@click.command("start", short_help="Let the cluster carry out a plan.")
@click.argument("plan_file", metavar="PLAN.json", type=InputFile())
@click.option(
    "--throttle",
    "rate",
    type=click.IntRange(1, INT64_MAX),
    metavar="BYTES_PER_S",
    help="Limit of each worker for what it sends and for what it receives.  "
    "[default: that of the plan]",
)
@click.option(
    "--no-throttle", "is_unlimited", is_flag=True, help="Without a limit, even if the plan has one."
)
@batch_option
@session_command
def start_command(
    session: Session, plan_file: TextIO, rate: int | None, is_unlimited: bool, batch: int
) -> None:
    """Start a plan, of `mq-admin moves plan` or of kafka-reassign-partitions; `-` reads stdin.

    The cluster moves the partitions of the plan a few at a time. The command may end: `mq-admin
    moves status` shows how far the plan is. The throttle limits only the copies of the plan, and
    ends with them; it needs no --verify. An operator's throttle that is lower on a worker holds
    there.

    \b
    Examples:
      mq-admin moves start plan.json --throttle 50000000
      mq-admin moves start plan.json --batch 20
    """
    if rate is not None and is_unlimited:
        raise click.UsageError("--throttle and --no-throttle exclude each other.")
    plan = _read(plan_file)
    _check_cluster(session, plan)
    if rate is None and not is_unlimited:
        rate = plan.throttle_bytes_per_s
    plan_id = started(session, plan, rate, batch)
    if session.output != "text":
        session.show_data({"plan": plan_id})


def started(session: Session, plan: Plan, rate_bytes_per_s: int | None, batch_size: int) -> int:
    """Start the plan, print that it runs, and return its id."""
    try:
        plan_id = session.moves.start(
            plan, rate_bytes_per_s=rate_bytes_per_s, batch_size=batch_size
        )
    except PlanError as error:
        raise click.UsageError(f"{_sentence(str(error))}") from None
    limit = "without a throttle"
    if rate_bytes_per_s is not None:
        limit = f"at {size_text(rate_bytes_per_s)}/s for each worker"
    session.say(f"plan {plan_id} started: {len(plan.moves)} moves, {limit}")
    session.say(f"`mq-admin moves status {plan_id} --watch` shows how far it is")
    _note_down(session, plan)
    return plan_id


def _note_down(session: Session, plan: Plan) -> None:
    """Warn about workers that shall get replicas and are down: the plan waits for them."""
    targets = {worker for move in plan.moves for worker in move.target}
    for worker in session.admin.workers():
        if worker.is_fenced and worker.worker_id in targets:
            session.note(
                f"Warning: worker {worker.worker_id} is down: moves to it wait until it returns,"
                " and others may wait for them"
            )


def _read(plan_file: TextIO) -> Plan:
    try:
        plan = read_plan(plan_file.read())
    except PlanError as error:
        raise click.UsageError(f"{plan_file.name}: {_sentence(str(error))}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"{plan_file.name} is not a text file in UTF-8.") from None
    if not plan.moves:
        raise click.UsageError(f"{plan_file.name} has no partitions to move.")
    return plan


def _check_cluster(session: Session, plan: Plan) -> None:
    """Refuse a plan that was made for another cluster."""
    if plan.cluster_id is None:
        return
    cluster_id = session.admin.describe_cluster().cluster_id
    if cluster_id != plan.cluster_id:
        raise click.UsageError(
            f"The plan was made for cluster {plan.cluster_id}, and this is cluster {cluster_id}."
        )


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
