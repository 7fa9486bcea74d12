"""Commands mq-load report, files, bundle and script, which need no cluster."""

from pathlib import Path

import click

from metaquorum.cli.common.output import printable, show_data
from metaquorum.cli.load.errors import says_why
from metaquorum.cli.load.load import read_storage_options
from metaquorum.cli.load.show import show_report, write_html
from metaquorum.spark.loader.bundle import write_bundle
from metaquorum.spark.loader.load_job import committed_files, read_report

_storage_option = click.option(
    "--storage-options", metavar="FILE", help="JSON file with options of fsspec's file system."
)


@click.command("report", short_help="Show the report of a load, and each gap with its reason.")
@click.argument("table", metavar="DIR|URL")
@click.option(
    "--load", "version", type=click.IntRange(1), help="Number of the load.  [default: the last]"
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@click.option("--html", metavar="FILE", help="Write the report as an HTML page.")
@_storage_option
@says_why
def report_command(
    table: str, version: int | None, form: str, html: str | None, storage_options: str | None
) -> None:
    """Show the report of a committed load: records, bytes, offsets, times and gaps by range."""
    report = read_report(table, version, read_storage_options(storage_options))
    if html is not None:
        write_html(report, html)
    if form == "json":
        show_data("json", report.to_json())
    else:
        show_report(report)


@click.command("files", short_help="List the committed data files.")
@click.argument("table", metavar="DIR|URL")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@_storage_option
@says_why
def files_command(table: str, form: str, storage_options: str | None) -> None:
    """List the committed data files of the table, and no others, also during a load."""
    found = committed_files(table, read_storage_options(storage_options))
    if form == "json":
        show_data("json", found)
    else:
        for path in found:
            click.echo(printable(path))


@click.command("bundle", short_help="Write a zip of this program for Spark's --py-files.")
@click.argument("path", metavar="FILE.zip")
@says_why
def bundle_command(path: str) -> None:
    """Write a zip of the modules that executors need, as pure Python.

    pyarrow and the codecs of compressed topics must be installed on the executors.
    """
    names = write_bundle(path)
    click.echo(f"{printable(path)}: {len(names)} files; spark-submit --py-files {printable(path)}")


@click.command("script", short_help="Print the path of the script for spark-submit.")
def script_command() -> None:
    """Print the path of a script that runs this program: spark-submit accepts only .py files."""
    click.echo(Path(__file__).with_name("script") / "mq_load.py")
