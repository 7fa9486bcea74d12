"""mq-admin moves."""

import click

from metaquorum.cli.admin.moves.change import (
    cancel_command,
    pause_command,
    resume_command,
    throttle_command,
)
from metaquorum.cli.admin.moves.explain import explain_command
from metaquorum.cli.admin.moves.plan import plan_command
from metaquorum.cli.admin.moves.start import start_command
from metaquorum.cli.admin.moves.status import status_command


@click.group("moves", short_help="Move partitions between workers by plans.")
def command() -> None:
    """Move partitions between workers by plans that the cluster carries out.

    A plan is in the metadata of the cluster: it continues if this command, or a controller, stops.
    Its throttle ends with it. Only metaquorum serves the requests of these commands.
    """


command.add_command(plan_command)
command.add_command(start_command)
command.add_command(status_command)
command.add_command(pause_command)
command.add_command(resume_command)
command.add_command(cancel_command)
command.add_command(throttle_command)
command.add_command(explain_command)
