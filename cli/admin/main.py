"""mq-admin: administer any Kafka-compatible cluster."""

from typing import Final, NamedTuple

import click

from cli.common.lazy_group import LazyGroup
from cli.common.security import security_options


class Place(NamedTuple):
    """Where a command is, and what is said of it before it is loaded."""

    module: str
    short_help: str


COMMANDS: Final = {
    "topics": Place("topics", "List, describe, create, alter and delete topics."),
    "configs": Place("configs", "Show and change the configs of topics and nodes."),
    "quotas": Place("quotas.commands", "Set, show and explain the quotas of users and clients."),
    "users": Place("users", "Add, list and remove users who log in with passwords."),
    "records": Place("records.commands", "Delete records from the start of partitions."),
    "cluster": Place("cluster", "Describe the cluster, its nodes and the APIs it serves."),
    "quorum": Place("quorum", "Show the controllers, who leads, and how far each is."),
    "workers": Place("workers", "List, describe and unregister workers."),
    "ledger": Place("ledger", "Show which records replicas have lost, when and why."),
    "log-dirs": Place("log_dirs", "Show what lies on the disks of the nodes."),
    "produce": Place("records.produce", "Send records from standard input."),
    "consume": Place("records.consume", "Write records to standard output."),
    "profiles": Place("profiles", "Show the profiles and where they are kept."),
    "completion": Place("completion", "Print a completion script for bash, zsh or fish."),
}


class _Commands(LazyGroup):
    """Of which none is imported for the help of all."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.short_help) for name, place in COMMANDS.items()])


@click.group(
    cls=_Commands,
    late={name: f"cli.admin.{place.module}:command" for name, place in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "-b",
    "--bootstrap",
    metavar="HOST:PORT,...",
    help="Where to find the cluster (or MQ_BOOTSTRAP).",
)
@click.option("--profile", metavar="NAME", help="A named cluster from the profiles' file.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), help="[default: text]")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 3600),
    metavar="SECONDS",
    help="How long one request may take, retries included.  [default: 30]",
)
@security_options
@click.version_option(package_name="metaquorum", prog_name="mq-admin")
@click.pass_context
def main(ctx: click.Context, /, **options: object) -> None:
    """Administer any Kafka-compatible cluster.

    The first four options below may also stand behind the command. The cluster is the first of:
    --bootstrap, --profile, MQ_BOOTSTRAP, MQ_PROFILE, the default profile, 127.0.0.1:9092.

    \b
    Exit codes:
      0  done
      1  a broker refused, or it is not there
      2  the command was not understood, or nobody could be asked
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
