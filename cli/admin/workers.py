"""mq-admin workers."""

import click

from cli.admin.common.session import INT32_MAX, Session, session_command, yes_option
from cli.common.output import Column, Row, show_pairs
from cli.common.times import ago_text
from metaquorum.client.errors import BrokerError
from metaquorum.client.values import WorkerDescription
from wire.primitives.errors import ErrorCode

_COLUMNS = (
    Column("worker"),
    Column("address"),
    Column("host"),
    Column("rack"),
    Column("state"),
    Column("epoch"),
    Column("metadata_offset"),
    Column("heard_ms_ago", "heard", ago_text),
    Column("why_fenced"),
)


@click.group("workers", short_help="List, describe and unregister workers.")
def command() -> None:
    """List, describe and unregister workers (Kafka's brokers), live or fenced."""


@command.command("list")
@session_command
def list_workers(session: Session) -> None:
    """List all registered workers.

    A fenced worker leads no partition and clients do not see it: its session expired, or it has not
    caught up with the metadata log yet. A dash means that the cluster does not provide the value.

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
    partitions = [p for topic in session.admin.topics() for p in topic.partitions]
    data = _row(found) | {
        "leads": sum(p.leader == worker for p in partitions),
        "replicas": sum(worker in p.replicas for p in partitions),
    }
    if session.output != "text":
        session.show_data(data)
        return
    shown = data | {"heard": None if found.heard_ms_ago is None else ago_text(found.heard_ms_ago)}
    show_pairs(
        (key.replace("_", " "), shown[key])
        for key in (*(column.heading.replace(" ", "_") for column in _COLUMNS), "leads", "replicas")
    )


@command.command("unregister")
@click.argument("worker", type=click.IntRange(0, INT32_MAX))
@yes_option
@session_command
def unregister(session: Session, worker: int, yes: bool) -> None:
    """Remove the registration of a worker that will not return.

    Stop the worker first: the cluster rejects this for a live worker, and until the session of a
    stopped worker has expired. Its replicas stay assigned to it; a partition without another
    replica has no leader.

    \b
    Examples:
      mq-admin workers unregister 3
      mq-admin workers unregister 3 --yes
    """
    session.ask(f"Unregister worker {worker}?", yes)
    session.admin.unregister_worker(worker)
    session.say(f"worker {worker} unregistered")


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
        "why_fenced": worker.why_fenced,
        "epoch": worker.broker_epoch,
        "metadata_offset": worker.metadata_offset,
        "heard_ms_ago": worker.heard_ms_ago,
    }
