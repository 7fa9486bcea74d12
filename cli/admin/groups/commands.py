"""mq-admin groups."""

import click

from metaquorum.cli.admin.groups.delete import delete_command
from metaquorum.cli.admin.groups.describe import describe_command, list_command
from metaquorum.cli.admin.groups.explain import explain_command
from metaquorum.cli.admin.groups.lag import lag_command
from metaquorum.cli.admin.groups.reset import reset_command


@click.group("groups", short_help="Show consumer groups and their lag; reset their offsets.")
def command() -> None:
    """Show consumer groups and their lag, reset their committed offsets, and delete them."""


command.add_command(list_command)
command.add_command(describe_command)
command.add_command(lag_command)
command.add_command(explain_command)
command.add_command(reset_command)
command.add_command(delete_command)
