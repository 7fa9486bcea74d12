"""mq-admin transactions abort."""

import shlex

import click

from metaquorum.cli.admin.common.scopes import parse_partition
from metaquorum.cli.admin.common.session import (
    INT32_MAX,
    INT64_MAX,
    Session,
    complete_topics,
    session_command,
    yes_option,
)
from metaquorum.cli.admin.transactions.options import complete_transactional_ids
from metaquorum.client.cluster import TopicPartition
from metaquorum.client.errors import AdminError
from metaquorum.client.transactions.values import ProducerState, TransactionDescription
from metaquorum.wire.primitives.errors import KafkaError, WireError

_INT16_MAX = 2**15 - 1


@click.command("abort", short_help="Abort a hanging transaction, or the one of a producer.")
@click.argument(
    "partition", metavar="[TOPIC:PARTITION]", required=False, shell_complete=complete_topics
)
@click.option(
    "--start-offset",
    type=click.IntRange(0, INT64_MAX),
    metavar="OFFSET",
    help="First offset of the transaction, as `hanging` and `explain` show it.",
)
@click.option(
    "--producer-id",
    type=click.IntRange(0, INT64_MAX),
    metavar="NUMBER",
    help="Producer id, for Kafka before 3.0; with the next two options.",
)
@click.option(
    "--producer-epoch",
    type=click.IntRange(0, _INT16_MAX),
    metavar="NUMBER",
    help="Epoch of the producer.",
)
@click.option(
    "--coordinator-epoch",
    type=click.IntRange(-1, INT32_MAX),
    metavar="NUMBER",
    help="Coordinator epoch of its last marker; -1: none.",
)
@click.option(
    "--transactional-id",
    metavar="ID",
    help="Abort the transaction of this id in all partitions, and fence its producer.",
    shell_complete=complete_transactional_ids,
)
@yes_option
@session_command
def abort_command(
    session: Session,
    partition: str | None,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    transactional_id: str | None,
    yes: bool,
) -> None:
    """Abort a hanging transaction in one partition, or the transaction of a transactional id.

    With TOPIC:PARTITION an abort marker is written to that partition alone. A transaction that its
    coordinator will end is refused, since a part of it would be aborted and the rest committed:
    --transactional-id aborts it everywhere. Its producer is fenced, and gets an error at its next
    call.

    \b
    Examples:
      mq-admin transactions abort orders:0 --start-offset 1234
      mq-admin transactions abort --transactional-id billing-1 --yes
      mq-admin transactions abort orders:0 --producer-id 7 --producer-epoch 3 --coordinator-epoch 12
    """
    by_epochs = (producer_id, producer_epoch, coordinator_epoch)
    if transactional_id is not None:
        if partition is not None or start_offset is not None or by_epochs != (None, None, None):
            raise click.UsageError("--transactional-id takes no partition and no other option")
        _fence(session, transactional_id, yes)
        return
    if partition is None:
        raise click.UsageError("specify TOPIC:PARTITION or --transactional-id")
    where = parse_partition(partition)
    if start_offset is None and None in by_epochs:
        raise click.UsageError(
            "specify --start-offset, or --producer-id, --producer-epoch and --coordinator-epoch"
        )
    if start_offset is not None:
        if by_epochs != (None, None, None):
            raise click.UsageError("--start-offset takes no producer id and no epochs")
        producer = _producer_at(session, where, start_offset)
        by_epochs = (producer.producer_id, producer.producer_epoch, producer.coordinator_epoch)
    _abort(session, where, by_epochs, yes)


def _producer_at(session: Session, where: TopicPartition, start_offset: int) -> ProducerState:
    outcome = session.transactions.describe_producers([where])[where]
    if isinstance(outcome, KafkaError):
        raise outcome
    for producer in outcome:
        if producer.start_offset == start_offset:
            return producer
    starts = sorted(each.start_offset for each in outcome if each.start_offset is not None)
    there = f"; open transactions begin at {', '.join(map(str, starts))}" if starts else ""
    text = f"no open transaction begins at offset {start_offset} of partition {where}{there}"
    raise AdminError(text)


def _abort(
    session: Session, where: TopicPartition, epochs: tuple[int | None, int | None, int | None],
    yes: bool,
) -> None:  # fmt: skip
    producer_id, producer_epoch, coordinator_epoch = epochs
    assert producer_id is not None
    assert producer_epoch is not None
    assert coordinator_epoch is not None
    owner = _coordinated(session, producer_id)
    if owner is not None and owner.is_active and where in owner.partitions:
        name = owner.transactional_id
        command = f"mq-admin transactions abort --transactional-id {shlex.quote(name)}"
        raise AdminError(
            f"the transaction does not hang: its coordinator, node {owner.coordinator}, has it as "
            f"{owner.state} of transactional id {name}, and will end it; `{command}` aborts an "
            "ongoing one in all its partitions"
        )
    whose = f"producer id {producer_id}, epoch {producer_epoch}"
    session.ask(f"Abort the transaction of {whose} in partition {where}?", yes)
    session.transactions.abort_in_partition(
        where,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
    )
    session.say(f"{where}: transaction of {whose} aborted")


def _coordinated(session: Session, producer_id: int) -> TransactionDescription | None:
    """Return the transactional id with a producer id; note if not all coordinators answered."""
    try:
        known = session.transactions.coordinated([producer_id])
    except (KafkaError, AdminError, WireError) as error:
        session.note(f"it is not known whether a coordinator has the transaction: {error}")
        return None
    if producer_id not in known.descriptions and not known.is_complete:
        session.note("it is not known whether a coordinator has the transaction: some of them did")
        session.note("  not answer; abort it only if you know that it hangs")
    return known.descriptions.get(producer_id)


def _fence(session: Session, transactional_id: str, yes: bool) -> None:
    outcome = session.transactions.describe_transactions([transactional_id])[transactional_id]
    if isinstance(outcome, KafkaError):
        raise outcome
    text = f"Fence the producer of transactional id {transactional_id}"
    if outcome.is_active:
        text += f", and end its transaction (state {outcome.state})"
    session.ask(f"{text}?", yes)
    producer_id, epoch = session.transactions.fence_producer(transactional_id)
    session.say(f"{transactional_id}: fenced; its producer id is {producer_id}, epoch {epoch}")
