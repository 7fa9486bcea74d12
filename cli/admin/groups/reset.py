"""mq-admin groups reset."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import click

from metaquorum.cli.admin.common.scopes import parse_scopes, topics_option
from metaquorum.cli.admin.common.session import INT64_MAX, Session, session_command
from metaquorum.cli.admin.groups.options import groups_argument
from metaquorum.cli.common.output import Column, Row, echo_exact
from metaquorum.cli.common.times import time_value
from metaquorum.client.cluster import TopicPartition
from metaquorum.client.errors import AdminError, BrokerError, UnreachableError
from metaquorum.client.groups.reset import PlannedOffset, Reset, ResetPlan, ResetTarget
from metaquorum.client.groups.reset_file import MAX_FILE_BYTES, offsets_text, read_offsets
from metaquorum.runtime.whole_numbers import whole_number

_COLUMNS: Final = (
    Column("group"),
    Column("topic"),
    Column("partition"),
    Column("committed"),
    Column("new"),
    Column("start_offset"),
    Column("end_offset"),
)
_NAMED: Final = {
    target.value: Reset(target)
    for target in (ResetTarget.EARLIEST, ResetTarget.LATEST, ResetTarget.CURRENT)
}

MakePlan = Callable[[str], ResetPlan]
Show = Callable[[Session, Sequence[ResetPlan], bool], None]


@click.command("reset", short_help="Plan or commit new offsets for groups without members.")
@groups_argument()
@topics_option("Topic, or some of its partitions, to reset; repeatable.")
@click.option("--all-topics", is_flag=True, help="All partitions with a committed offset.")
@click.option("--to", "to", metavar="earliest|latest|current|OFFSET", help="New offset.")
@click.option(
    "--to-time",
    callback=time_value,
    metavar="TIME",
    help="The first record from this time on, or the log end.",
)
@click.option(
    "--shift-by",
    type=click.IntRange(-INT64_MAX, INT64_MAX),
    metavar="RECORDS",
    help="Move the committed offset by this number, which may be negative.",
)
@click.option("--from-file", metavar="FILE", help="Offsets of a CSV file; - is standard input.")
@click.option("--execute", is_flag=True, help="Commit the new offsets.  [default: only the plan]")
@click.option("--export", is_flag=True, help="Print the plan as CSV for --from-file.")
@session_command
def reset_command(
    session: Session,
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    all_topics: bool,
    to: str | None,
    to_time: int | None,
    shift_by: int | None,
    from_file: str | None,
    execute: bool,
    export: bool,
) -> None:
    """Show the new offsets that a reset would commit, and commit them with --execute.

    Groups must not have members. Offsets outside the log are moved to its nearer end, except with
    `--to current`, which keeps committed offsets and gives the log end to the other partitions. If
    one partition of one group has no new offset, nothing is committed.

    TIME is 2026-01-31, 2026-01-31T10:30, 2026-01-31T10:30Z, milliseconds since 1970, or a time ago:
    90s, 15m, 2h, 7d. FILE has lines topic,partition,offset, or group,topic,partition,offset, as of
    Kafka's kafka-consumer-groups.

    \b
    Examples:
      mq-admin groups reset billing --topic orders --to earliest
      mq-admin groups reset billing --all-topics --to-time 2h --execute
      mq-admin groups reset billing --topic orders:0,1 --shift-by -100 --execute
      mq-admin groups reset billing --all-topics --to current --export > offsets.csv
      mq-admin groups reset billing --from-file offsets.csv --execute
    """
    groups = tuple(dict.fromkeys(groups))
    if export and session.output != "text":
        raise click.UsageError("--export prints CSV; omit it or --output")
    reset = _reset(to, to_time, shift_by, from_file)
    if reset is None:
        if topics or all_topics:
            raise click.UsageError("the file of --from-file names the partitions: omit --topic")
        assert from_file is not None
        make_plan = _plan_of_file(session, from_file, groups)
    else:
        if bool(topics) == all_topics:
            raise click.UsageError("specify either --topic or --all-topics")
        make_plan = _plan_of_target(session, topics, reset)
    plans = [plan for group in groups if (plan := _plan(session, group, make_plan)) is not None]
    show = _export if export else _show
    if execute and not session.has_failed:
        _commit(session, plans, show)
        return
    show(session, plans, False)
    if session.has_failed:
        session.note("Nothing was changed.")
    else:
        session.note("Nothing was changed; --execute commits these offsets.")


def _reset(
    to: str | None, to_time: int | None, shift_by: int | None, from_file: str | None
) -> Reset | None:
    """Return the target of the options; None for a file."""
    if sum(value is not None for value in (to, to_time, shift_by, from_file)) != 1:
        raise click.UsageError("specify one of --to, --to-time, --shift-by and --from-file")
    if to_time is not None:
        return Reset(ResetTarget.TIME, to_time)
    if shift_by is not None:
        return Reset(ResetTarget.SHIFT, shift_by)
    if to is None:
        return None
    if to in _NAMED:
        return _NAMED[to]
    if (offset := whole_number(to, INT64_MAX)) is None:
        raise click.UsageError(f"--to takes earliest, latest, current or an offset, not {to!r}")
    return Reset(ResetTarget.OFFSET, offset)


def _plan_of_target(session: Session, topics: Sequence[str], reset: Reset) -> MakePlan:
    """Return the function that plans a group; its partitions are those of the topics.

    Without topics they are the partitions with a committed offset of the group.
    """
    partitions = _partitions(session, topics)

    def plan(group: str) -> ResetPlan:
        own = partitions if topics else _committed(session, group)
        return session.groups.plan_reset(group, own, reset)

    return plan


def _partitions(session: Session, topics: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions of the scopes; report topics that do not exist."""
    scopes = parse_scopes(topics)
    described = session.admin.describe_topics([scope.topic for scope in scopes]) if scopes else {}
    for outcome in described.values():
        session.keep(outcome)
    found: list[TopicPartition] = []
    for scope in scopes:
        topic = described[scope.topic]
        if isinstance(topic, BrokerError):
            continue
        indexes = [partition.index for partition in topic.partitions]
        found += [
            TopicPartition(scope.topic, index)
            for index in (indexes if scope.partitions is None else scope.partitions)
        ]
    return list(dict.fromkeys(found))


def _committed(session: Session, group: str) -> list[TopicPartition]:
    (committed,) = session.groups.committed_offsets([group]).values()
    if isinstance(committed, BrokerError):
        raise committed
    if not committed:
        raise AdminError(f"group {group} has no committed offsets; --topic selects partitions")
    return list(committed)


def _plan_of_file(session: Session, path: str, groups: Sequence[str]) -> MakePlan:
    offsets = _read(path, groups)

    def plan(group: str) -> ResetPlan:
        if not offsets[group]:
            raise AdminError(f"the file has no offsets of group {group}")
        return session.groups.plan_offsets(group, offsets[group])

    return plan


def _read(path: str, groups: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with open(os.path.expanduser(path), "rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise click.UsageError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    try:
        return read_offsets(data.decode("utf-8-sig"), groups)
    except ValueError as error:  # also UnicodeDecodeError
        raise click.UsageError(f"{path}: {error}") from None


def _plan(session: Session, group: str, make_plan: MakePlan) -> ResetPlan | None:
    """Return the plan for a group; report partitions without a new offset, and clamped ones."""
    try:
        plan = make_plan(group)
    except UnreachableError:
        raise
    except (BrokerError, AdminError) as error:  # continue with the other groups
        session.report(error)
        return None
    for refusal in plan.refused.values():
        session.report(refusal)
    if plan.creates_group and plan.offsets:
        session.note(f"group {group} does not exist; a commit creates it")
    for each in plan.offsets:
        if each.clamped_from is not None:
            session.note(_clamped_text(each))
    return plan


def _clamped_text(planned: PlannedOffset) -> str:
    asked = planned.clamped_from
    end = "start" if asked is not None and asked < planned.log.start else "end"
    return (
        f"{planned.where}: the log does not contain offset {asked}; the new offset "
        f"is the log {end}, {planned.new}"
    )


def _commit(session: Session, plans: Sequence[ResetPlan], show: Show) -> None:
    """Commit the offsets of the plans, and show what was committed, also after an error."""
    done: list[ResetPlan] = []
    try:
        for plan in plans:
            new = {each.where: each.new for each in plan.offsets}
            outcomes = session.groups.commit_offsets(plan.group, new)
            committed = []
            for each in plan.offsets:
                if (refusal := outcomes.get(each.where)) is None:
                    committed.append(each)
                else:
                    session.report(refusal)
            done.append(replace(plan, offsets=committed))
    finally:
        show(session, done, True)


def _export(session: Session, plans: Sequence[ResetPlan], executed: bool) -> None:
    echo_exact(offsets_text(plans, with_group=len(plans) > 1), nl=False)


def _show(session: Session, plans: Sequence[ResetPlan], executed: bool) -> None:
    rows = [_row(plan, each, executed) for plan in plans for each in plan.offsets]
    if rows or session.output != "text":
        session.show_rows(rows, _COLUMNS)


def _row(plan: ResetPlan, planned: PlannedOffset, executed: bool) -> Row:
    return {
        "group": plan.group,
        "topic": planned.where.topic,
        "partition": planned.where.partition,
        "committed": planned.committed,
        "new": planned.new,
        "start_offset": planned.log.start,
        "end_offset": planned.log.end,
        "clamped_from": planned.clamped_from,
        "executed": executed,
    }
