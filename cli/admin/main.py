"""mq-admin: administer any Kafka-compatible cluster."""

from typing import Final, NamedTuple

import click

from metaquorum.cli.common.lazy_group import LazyGroup
from metaquorum.cli.common.security import security_options


class Place(NamedTuple):
    """Module of a command, and its short help, which is shown without importing the module."""

    module: str
    short_help: str


COMMANDS: Final = {
    "topics": Place("topics", "List, describe, create, alter and delete topics."),
    "configs": Place("configs", "Show and change the configs of topics and nodes."),
    "quotas": Place("quotas.commands", "Set, show and explain the quotas of users and clients."),
    "users": Place("users", "Add, list and remove users with SCRAM passwords."),
    "records": Place("records.commands", "Delete records from the start of partitions."),
    "groups": Place("groups.commands", "Show consumer groups and their lag; reset their offsets."),
    "transactions": Place(
        "transactions.commands", "Show transactions, and explain and end those that hold readers."
    ),
    "moves": Place("moves.commands", "Move partitions between workers by plans."),
    "cluster": Place("cluster", "Describe the cluster, its nodes, its health and its APIs."),
    "quorum": Place("quorum", "Show the controllers: the leader, and the lag of each voter."),
    "workers": Place("workers", "List, describe, drain and remove workers."),
    "ledger": Place("ledger", "Show the records that replicas lost, with time and reason."),
    "log-dirs": Place("log_dirs", "Show the log directories of the nodes."),
    "produce": Place("records.produce", "Send records from standard input."),
    "consume": Place("records.consume", "Print records on standard output."),
    "profiles": Place("profiles", "Show the profiles and their file."),
    "completion": Place("completion", "Print a completion script for bash, zsh or fish."),
}


class _Commands(LazyGroup):
    """Command group that imports no command to print its help."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.short_help) for name, place in COMMANDS.items()])


@click.group(
    cls=_Commands,
    late={name: f"metaquorum.cli.admin.{place.module}:command" for name, place in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "-b",
    "--bootstrap",
    metavar="HOST:PORT,...",
    help="Addresses of the cluster (or MQ_BOOTSTRAP).",
)
@click.option("--profile", metavar="NAME", help="Profile with the settings of a cluster.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), help="[default: text]")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 3600),
    metavar="SECONDS",
    help="Timeout of one request, including retries.  [default: 30]",
)
@security_options
@click.version_option(package_name="metaquorum", prog_name="mq-admin")
@click.pass_context
def main(ctx: click.Context, /, **options: object) -> None:
    """Administer any Kafka-compatible cluster.

    The first four options below may also follow the command. The address of the cluster comes from
    the first of: --bootstrap, --profile, MQ_BOOTSTRAP, MQ_PROFILE, the default profile,
    127.0.0.1:9092.

    \b
    Exit codes:
      0  success
      1  a broker rejected the request, or the object does not exist
      2  invalid usage, or no terminal for a confirmation
      3  no broker could be reached, or none answered in time

    \b
    Examples:
      mq-admin topics list
      mq-admin -b broker1:9092,broker2:9092 topics describe orders
      mq-admin --profile production -o json cluster describe
      echo hello | mq-admin produce greetings
      mq-admin consume greetings --from beginning
    """
    ctx.obj = options


if __name__ == "__main__":
    main(prog_name="mq-admin")
