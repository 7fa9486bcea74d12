"""mq-admin moves pause, resume, cancel and throttle: change a plan that has not ended."""

import click

from metaquorum.cli.admin.common.session import (
    INT32_MAX,
    INT64_MAX,
    Session,
    session_command,
    yes_option,
)
from metaquorum.cli.common.output import size_text

plan_argument = click.argument("plan", type=click.IntRange(1, INT32_MAX))


@click.command("pause", short_help="Begin no further moves of a plan.")
@plan_argument
@session_command
def pause_command(session: Session, plan: int) -> None:
    """Begin no further moves of a plan; partitions that move already continue, with the throttle.

    \b
    Examples:
      mq-admin moves pause 3
    """
    session.moves.alter(plan, "pause")
    session.say(f"plan {plan} paused")


@click.command("resume", short_help="Resume a plan that was paused.")
@plan_argument
@session_command
def resume_command(session: Session, plan: int) -> None:
    """Resume a plan that was paused.

    \b
    Examples:
      mq-admin moves resume 3
    """
    session.moves.alter(plan, "resume")
    session.say(f"plan {plan} resumed")


@click.command("cancel", short_help="End a plan; partitions that move go back.")
@plan_argument
@yes_option
@session_command
def cancel_command(session: Session, plan: int, yes: bool) -> None:
    """End a plan: partitions that move go back to their replicas before, and those done stay.

    A partition whose original replicas are all out of sync cannot go back; its move continues.

    \b
    Examples:
      mq-admin moves cancel 3
      mq-admin moves cancel 3 --yes
    """
    session.ask(f"Cancel plan {plan}?", yes)
    session.moves.alter(plan, "cancel")
    session.say(f"plan {plan} is being cancelled")


@click.command("throttle", short_help="Change the throttle of a plan.")
@plan_argument
@click.argument("rate", metavar="BYTES_PER_S|none")
@session_command
def throttle_command(session: Session, plan: int, rate: str) -> None:
    """Change the throttle of a plan while it runs; `none` removes it.

    \b
    Examples:
      mq-admin moves throttle 3 100000000
      mq-admin moves throttle 3 none
    """
    limit = None if rate == "none" else _rate(rate)
    session.moves.alter(plan, "throttle", limit)
    shown = "no throttle" if limit is None else f"{size_text(limit)}/s for each worker"
    session.say(f"plan {plan} has {shown} now")


def _rate(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:20]) <= INT64_MAX:
        raise click.UsageError(
            f"'{text}' is not a throttle: give bytes per second, at least 1, or none."
        )
    return int(text)
