"""mq-load: load topics of any Kafka-compatible cluster into Parquet files."""

from typing import Final, NamedTuple

import click

from metaquorum.cli.common.lazy_group import LazyGroup
from metaquorum.cli.load.extras import missing_text


class Place(NamedTuple):
    """Module and attribute of a command, and its short help before it is imported."""

    attribute: str
    short_help: str


COMMANDS: Final = {
    "load": Place("load:load_command", "Load new records, or resume an interrupted load."),
    "plan": Place(
        "load:plan_command", "Show the ranges of the next load, and an estimate of the time."
    ),
    "report": Place(
        "tables:report_command", "Show the report of a load, and each gap with its reason."
    ),
    "files": Place("tables:files_command", "List the committed data files."),
    "bundle": Place("tables:bundle_command", "Write a zip of this program for Spark's --py-files."),
    "script": Place("tables:script_command", "Print the path of the script for spark-submit."),
}


class _Commands(LazyGroup):
    """The commands, which the top-level help does not import."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            return super().get_command(ctx, cmd_name)
        except ImportError as error:
            if (missing := missing_text(error)) is None:
                raise
            click.echo(f"mq-load: {missing}", err=True)
            ctx.exit(1)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.short_help) for name, place in COMMANDS.items()])


@click.group(
    cls=_Commands,
    late={name: f"metaquorum.cli.load.{place.attribute}" for name, place in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="metaquorum", prog_name="mq-load")
def main() -> None:
    """Load topics of any Kafka-compatible cluster into Parquet files, each record once.

    After a crash, the same command resumes the load; after a commit, it loads the records appended
    since then.

    \b
    Exit codes:
      0  success, also if there were no new records
      1  the load was refused or failed; the message gives the reason
      2  the arguments are invalid
      3  no broker could be reached, or no broker answered in time

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
