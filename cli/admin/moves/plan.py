"""mq-admin moves plan: chooses targets, and estimates how long their moves take."""

from collections.abc import Collection
from pathlib import Path
from typing import Final, TextIO

import click

from metaquorum.cli.admin.common.session import INT32_MAX, Session, complete_topics, session_command
from metaquorum.cli.admin.moves import shown_plan
from metaquorum.cli.admin.moves.options import ThrottleChoice, throttle_options
from metaquorum.cli.admin.moves.planning import make_plan
from metaquorum.cli.common.empty_values import InputFile
from metaquorum.metadata.moves import balance as balancing
from metaquorum.metadata.moves.balance import Goal
from metaquorum.metadata.moves.cluster_state import ClusterState
from metaquorum.metadata.moves.plan import Plan, PlanError, read_topics, write_plan
from metaquorum.runtime.whole_numbers import whole_number
from metaquorum.wire.protocol.apis import ApiKey

_GOALS: Final = {goal.value: goal for goal in Goal}
_WORKER_ID: Final = click.IntRange(0, INT32_MAX)


@click.command("plan", short_help="Choose targets, and estimate the time of their moves.")
@click.option("--drain", type=_WORKER_ID, multiple=True, help="Empty this worker; repeatable.")
@click.option("--add", type=_WORKER_ID, multiple=True, help="Fill this new worker; repeatable.")
@click.option("--balance", "is_balance", is_flag=True, help="Balance all live workers.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    help="Balance this topic; repeatable.",
    shell_complete=complete_topics,
)
@click.option(
    "--topics-file",
    type=InputFile(),
    metavar="FILE",
    help="Balance the topics of a --topics-to-move-json-file; - is standard input.",
)
@click.option(
    "--workers", metavar="ID,ID,...", help="Workers for --topic and --topics-file.  [default: all]"
)
@click.option(
    "--by",
    "goals",
    type=click.Choice(list(_GOALS)),
    multiple=True,
    help="Numbers to balance; repeatable.  [default: all three]",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 100),
    default=balancing.DEFAULT_TOLERANCE * 100,
    show_default=True,
    metavar="PERCENT",
    help="Difference of a worker's bytes from the mean that is left.",
)
@throttle_options
@click.option(
    "--plan-file", metavar="FILE", help="Write the plan there, for `mq-admin moves start`."
)
@session_command
def plan_command(
    session: Session,
    drain: tuple[int, ...],
    add: tuple[int, ...],
    is_balance: bool,
    topics: tuple[str, ...],
    topics_file: TextIO | None,
    workers: str | None,
    goals: tuple[str, ...],
    tolerance: float,
    chosen: ThrottleChoice,
    plan_file: str | None,
) -> None:
    """Plan moves that empty workers, fill new ones, or balance workers or topics.

    Nothing moves: `mq-admin moves start` and `kafka-reassign-partitions` carry out the file of
    --plan-file. A plan moves few bytes, and keeps the replicas of a partition on as many hosts and
    racks as now. The estimate is from sizes, and from inbound rates that are measured first. A
    throttle that can never finish is refused; without --throttle one is proposed. The columns of
    leaders count preferred leaders: partitions of which the worker is the first replica.

    \b
    Examples:
      mq-admin moves plan --drain 3 --plan-file plan.json
      mq-admin moves plan --add 4 --network-bytes-per-s 125000000
      mq-admin moves plan --balance --by replicas --within 3600
      mq-admin moves plan --topic orders --workers 1,2,3 -o json
    """
    if sum(map(bool, (drain, add, is_balance, topics or topics_file))) != 1:
        raise click.UsageError(
            "specify one of --drain, --add, --balance, and --topic or --topics-file"
        )
    if workers is not None and not (topics or topics_file):
        raise click.UsageError("--workers is only for --topic and --topics-file")
    wanted = {_GOALS[goal] for goal in goals} or balancing.ALL_GOALS
    try:
        named = [*topics, *(read_topics(topics_file.read()) if topics_file else ())]
        ids = None if workers is None else _worker_ids(workers)
        made = make_plan(
            session,
            lambda state: _planned(state, drain, add, named, ids, wanted, tolerance / 100),
            chosen,
        )
    except PlanError as error:
        raise click.UsageError(str(error)) from None
    if plan_file is not None:
        try:
            Path(plan_file).write_text(write_plan(made.plan), encoding="utf-8")
        except OSError as error:
            raise click.UsageError(f"--plan-file {plan_file}: {error.strerror}") from None
    if session.output == "text":
        shown_plan.show(made, "; --plan-file and -o json have all")
    else:
        session.show_data(shown_plan.data(made))
    shown_plan.note_warnings(session, made, drain)
    if plan_file is not None and made.plan.moves:
        session.say("")
        tools = f"`kafka-reassign-partitions --execute --reassignment-json-file {plan_file}`"
        if any(api.key == ApiKey.START_MOVE_PLAN for api in session.admin.apis()):
            tools = f"`mq-admin moves start {plan_file}`"
        session.say(f"{tools} carries out the plan")


def _worker_ids(text: str) -> set[int]:
    ids = [whole_number(part.strip(), INT32_MAX) for part in text.split(",")]
    found = {each for each in ids if each is not None}
    if len(found) < len(ids):
        raise click.UsageError(
            f"--workers takes different worker ids with commas between them, not {text!r}"
        )
    return found


def _planned(
    state: ClusterState,
    drain: Collection[int],
    add: Collection[int],
    topics: Collection[str],
    workers: Collection[int] | None,
    goals: Collection[Goal],
    tolerance: float,
) -> Plan:
    if drain:
        return balancing.drain(state, drain)
    if add:
        return balancing.add(state, add, goals)
    if topics:
        return balancing.spread(state, topics, workers, goals, tolerance)
    return balancing.balance(state, goals, tolerance)
