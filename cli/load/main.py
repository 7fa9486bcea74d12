"""mq-load: load topics of any Kafka-compatible cluster into Parquet files."""

from typing import Final, NamedTuple

import click

from cli.common.lazy_group import LazyGroup


class Place(NamedTuple):
    """Where a command is, and what is said of it before it is loaded."""

    attribute: str
    short_help: str


COMMANDS: Final = {
    "load": Place("load:load_command", "Load what is new, or go on with a load that died."),
    "plan": Place("load:plan_command", "Show what a load would read, and how long it may take."),
    "report": Place(
        "tables:report_command", "Show what a load read, and each gap with its reason."
    ),
    "files": Place("tables:files_command", "List the data files that are committed."),
    "bundle": Place("tables:bundle_command", "Write a zip of this program for Spark's --py-files."),
    "script": Place("tables:script_command", "Print the path of the file that spark-submit takes."),
}


class _Commands(LazyGroup):
    """Of which none is imported for the help of all."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            return super().get_command(ctx, cmd_name)
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "pyarrow":
                raise
            click.echo(
                "mq-load: pyarrow is not installed; run: pip install 'metaquorum[spark]'", err=True
            )
            ctx.exit(1)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.short_help) for name, place in COMMANDS.items()])


@click.group(
    cls=_Commands,
    late={name: f"cli.load.{place.attribute}" for name, place in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="metaquorum", prog_name="mq-load")
def main() -> None:
    """Load topics of any Kafka-compatible cluster into Parquet files, each record once.

    A load that died is gone on with by the same command; after one that is committed, the same
    command loads what has come since.

    \b
    Exit codes:
      0  done, also if there was nothing new
      1  the load was refused, or did not end; the sentence says why
      2  the command was not understood
      3  no broker could be reached, or none answered in time

    \b
    Examples:
      mq-load load -b broker1:9092 --topic orders --output tables/orders --local
      mq-load plan -b broker1:9092 --topic orders --output tables/orders
      mq-load load -b broker1:9092 --topic orders --from 2026-01-31 --output s3://bucket/orders
      mq-load report tables/orders --html report.html
      spark-submit --py-files bundle.zip "$(mq-load script)" load --topic orders ...
    """


if __name__ == "__main__":
    main(prog_name="mq-load")
