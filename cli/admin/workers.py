"""mq-admin workers."""

import click

from metaquorum.cli.admin.common.session import INT32_MAX, Session, session_command, yes_option
from metaquorum.cli.admin.moves.options import (
    ThrottleChoice,
    batch_option,
    refuse_without,
    throttle_options,
)
from metaquorum.cli.common.output import Column, Row, show_pairs
from metaquorum.cli.common.times import ago_text
from metaquorum.client.errors import BrokerError
from metaquorum.client.values import WorkerDescription
from metaquorum.wire.primitives.errors import ErrorCode

_COLUMNS = (
    Column("worker"),
    Column("address"),
    Column("host"),
    Column("rack"),
    Column("state"),
    Column("draining"),
    Column("epoch"),
    Column("metadata_offset"),
    Column("heard_ms_ago", "heard", ago_text),
    Column("why_fenced"),
)


@click.group("workers", short_help="List, describe, drain and remove workers.")
def command() -> None:
    """List, describe, drain and remove workers (Kafka's brokers), live or fenced."""


@command.command("list")
@session_command
def list_workers(session: Session) -> None:
    """List all registered workers.

    A fenced worker leads no partition and clients do not see it: its session expired, or it has not
    caught up with the metadata log yet. A draining worker receives no new replica or leadership. A
    dash means that the cluster does not provide the value.

    \b
    Examples:
      mq-admin workers list
      mq-admin workers list -o json
    """
    session.show_rows([_row(worker) for worker in session.admin.workers()], _COLUMNS)


@command.command("describe")
@click.argument("worker", type=click.IntRange(0, INT32_MAX))
@session_command
def describe(session: Session, worker: int) -> None:
    """Describe one worker, with the number of its leaders and replicas.

    \b
    Examples:
      mq-admin workers describe 2
    """
    found = next((each for each in session.admin.workers() if each.worker_id == worker), None)
    if found is None:
        raise BrokerError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, "the worker is not registered", f"worker {worker}"
        )
    data = _row(found) | _load(session, worker)
    if session.output != "text":
        session.show_data(data)
        return
    shown = data | {"heard": None if found.heard_ms_ago is None else ago_text(found.heard_ms_ago)}
    show_pairs(
        (key.replace("_", " "), shown[key])
        for key in (*(column.heading.replace(" ", "_") for column in _COLUMNS), "leads", "replicas")
    )


@command.command("drain")
@click.argument("worker", type=click.IntRange(0, INT32_MAX))
@click.option(
    "--start",
    "is_started",
    is_flag=True,
    help="Plan the moves of its replicas, and start the plan.",
)
@throttle_options
@batch_option
@session_command
def drain(
    session: Session, worker: int, is_started: bool, chosen: ThrottleChoice, batch: int
) -> None:
    """Keep new replicas and leaderships away from a worker.

    Other workers lead its partitions where one that is in sync may, now or as soon as one is.
    Topics and partitions are created on the other workers, except with replicas that name it. Its
    present replicas stay: the printed commands move them. This lasts, also while the worker is
    restarted, until `workers return` or `workers remove`.

    With --start the command also plans the moves and starts the plan, as `moves plan --drain` and
    `moves start` do, with their options. The cluster carries the plan out after the command ends.

    \b
    Examples:
      mq-admin workers drain 3
      mq-admin workers drain 3 --start
      mq-admin workers drain 3 --start --within 3600 --batch 20
      mq-admin workers drain 3 -o json
    """
    if not is_started:
        refuse_without("--start")
    session.admin.drain_worker(worker)
    data = {"worker": worker, "draining": True, **_load(session, worker)}
    session.say(
        f"worker {worker} is draining; it has {data['replicas']} replicas and leads"
        f" {data['leads']} partitions"
    )
    if is_started:
        from metaquorum.cli.admin.moves.drain import start_drain

        session.say("")
        data |= start_drain(session, worker, chosen, batch)
    if session.output != "text":
        session.show_data(data)
        return
    if data["replicas"] and not is_started:
        file = f"drain-{worker}.json"
        session.note(
            f"`mq-admin moves plan --drain {worker} --plan-file {file}` plans the moves of its"
            " replicas"
        )
        session.note(f"`mq-admin moves start {file}` carries out that plan")
    session.note(f"`mq-admin workers remove {worker}` removes it when it is empty and stopped")


@command.command("return")
@click.argument("worker", type=click.IntRange(0, INT32_MAX))
@session_command
def return_worker(session: Session, worker: int) -> None:
    """End the drain of a worker: it may receive new replicas and leaderships again.

    Moves that are under way continue. The preferred leader election, automatic or requested, gives
    it its leaderships back.

    \b
    Examples:
      mq-admin workers return 3
    """
    session.admin.return_worker(worker)
    session.say(f"worker {worker} is not draining")


@command.command("remove")
@click.argument("worker", type=click.IntRange(0, INT32_MAX))
@yes_option
@session_command
def remove(session: Session, worker: int, yes: bool) -> None:
    """Remove the registration of a worker that has no replica.

    The cluster rejects this while the worker has a replica, also one that a move adds or removes,
    while it is alive, and until the session of a stopped worker has expired.

    \b
    Examples:
      mq-admin workers remove 3
      mq-admin workers remove 3 --yes
    """
    session.ask(f"Remove worker {worker}?", yes)
    session.admin.remove_worker(worker)
    session.say(f"worker {worker} removed")


@command.command("unregister")
@click.argument("worker", type=click.IntRange(0, INT32_MAX))
@yes_option
@session_command
def unregister(session: Session, worker: int, yes: bool) -> None:
    """Remove the registration of a worker that will not return.

    Stop the worker first: the cluster rejects this for a live worker, and until the session of a
    stopped worker has expired. Its replicas stay assigned to it; a partition without another
    replica has no leader. `workers remove` is rejected while it has replicas.

    \b
    Examples:
      mq-admin workers unregister 3
      mq-admin workers unregister 3 --yes
    """
    session.ask(f"Unregister worker {worker}?", yes)
    session.admin.unregister_worker(worker)
    session.say(f"worker {worker} unregistered")


def _load(session: Session, worker: int) -> dict[str, int]:
    """Return the numbers of the worker's leaders and replicas."""
    partitions = [p for topic in session.admin.topics() for p in topic.partitions]
    return {
        "leads": sum(p.leader == worker for p in partitions),
        "replicas": sum(worker in p.replicas for p in partitions),
    }


def _row(worker: WorkerDescription) -> Row:
    state = "fenced" if worker.is_fenced else "live"
    if worker.is_shutting_down and not worker.is_fenced:
        state = "shutting down"
    return {
        "worker": worker.worker_id,
        "address": worker.address,
        "host": worker.host,
        "rack": worker.rack,
        "state": state,
        "draining": worker.is_draining,
        "why_fenced": worker.why_fenced,
        "epoch": worker.broker_epoch,
        "metadata_offset": worker.metadata_offset,
        "heard_ms_ago": worker.heard_ms_ago,
    }
