"""mq-admin moves explain: what the moves of a plan wait for."""

import click

from metaquorum.cli.admin.common.session import Session, session_command
from metaquorum.cli.admin.moves.change import plan_argument
from metaquorum.cli.common.output import printable
from metaquorum.client.move_plans.explanation import Wait, explain

MOST_SHOWN = 50


@click.command("explain", short_help="Explain what the moves of a plan wait for.")
@plan_argument
@session_command
def explain_command(session: Session, plan: int) -> None:
    """Explain what each move of a plan waits for: replicas, throttles, workers, or its turn.

    Sentences with ! name a problem, those with - what is normal while a plan runs.

    \b
    Examples:
      mq-admin moves explain 3
      mq-admin moves explain 3 -o json
    """
    waits = explain(session.moves.facts(plan))
    if session.output != "text":
        session.show_data([_data(wait) for wait in waits])
        return
    problems = [wait for wait in waits if wait.is_problem]
    others = [wait for wait in waits if not wait.is_problem]
    others.sort(key=lambda wait: (wait.partition is not None, -(wait.lag or 0)))
    shown = [*problems, *others]
    for wait in shown[:MOST_SHOWN]:
        where = "" if wait.partition is None else f"{wait.partition}: "
        click.echo(printable(f"{'!' if wait.is_problem else '-'} {where}{wait.text}"))
    if len(shown) > MOST_SHOWN:
        click.echo(f"and {len(shown) - MOST_SHOWN} more; -o json shows all")


def _data(wait: Wait) -> dict[str, object]:
    return {
        "partition": wait.partition,
        "replica": wait.replica,
        "lag": wait.lag,
        "is_problem": wait.is_problem,
        "text": wait.text,
    }
