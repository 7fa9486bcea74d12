"""mq-admin transactions."""

import click

from metaquorum.cli.admin.transactions.abort import abort_command
from metaquorum.cli.admin.transactions.describe import (
    describe_command,
    list_command,
    producers_command,
)
from metaquorum.cli.admin.transactions.explain import explain_command
from metaquorum.cli.admin.transactions.hanging import hanging_command
from metaquorum.cli.admin.transactions.remove import remove_command


@click.group(
    "transactions", short_help="Show transactions, and explain and end those that hold readers."
)
def command() -> None:
    """Show transactions, explain why read_committed does not advance, and abort them."""


command.add_command(list_command)
command.add_command(describe_command)
command.add_command(producers_command)
command.add_command(explain_command)
command.add_command(hanging_command)
command.add_command(abort_command)
command.add_command(remove_command)
