"""Commands mq-load load and mq-load plan."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final

import click

from metaquorum.cli.common.output import printable, show_data
from metaquorum.cli.common.security import security_options
from metaquorum.cli.common.settings import resolve
from metaquorum.cli.load.errors import says_why
from metaquorum.cli.load.progress import watch_progress
from metaquorum.cli.load.show import show_plan, show_report, write_html
from metaquorum.spark.loader.errors import UsageError
from metaquorum.spark.loader.load_job import (
    DEFAULT_RECORDS_PER_RANGE,
    LoadJob,
    make_runner,
    new_client_id,
    plan_load,
    run_job,
)
from metaquorum.spark.loader.planner import RangeSizes
from metaquorum.spark.loader.table.load_plan import CODECS, TableSettings
from metaquorum.spark.options import DEFAULT_TIMEOUT_S, Connecting
from metaquorum.spark.value_schemas import RegistryAuth, ValueSchemaSpec
from metaquorum.spark.value_schemas.spec import CONFLUENT, KINDS, NO_FRAMING

_MAX_OPTIONS_BYTES: Final = 1 << 20
_MAX_SCHEMA_BYTES: Final = 16 << 20
# Options that are refused without --value-format.
_VALUE_OPTIONS: Final = (
    *("value_schema", "value_message", "value_framing"),
    *("schema_registry", "schema_id", "registry_ca"),
)
_SOURCE: Final = (
    click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT,...",
        help="Addresses of some brokers of the cluster (or MQ_BOOTSTRAP).",
    ),
    click.option(
        "--profile", metavar="NAME", help="Profile of mq-admin with a cluster's settings."
    ),
    click.option(
        "--topic",
        "topics",
        multiple=True,
        required=True,
        metavar="TOPIC",
        help="Topic to load; may be given more than once.",
    ),
    click.option(
        "--from",
        "starting",
        default="earliest",
        show_default=True,
        metavar="OFFSET|TIME",
        help="Start of the first load of a partition: earliest, an offset, or a time; later loads "
        "continue where the last one ended.",
    ),
    click.option(
        "--to",
        "ending",
        default="latest",
        show_default=True,
        metavar="OFFSET|TIME",
        help="End of the load, exclusive: latest, an offset, or a time.",
    ),
    click.option(
        "--output",
        required=True,
        metavar="DIR|URL",
        help="Folder of the table, or a prefix in s3://, gs://, abfs://.",
    ),
    click.option(
        "--storage-options",
        metavar="FILE",
        help="JSON file with options of fsspec's file system, such as the endpoint; may have "
        "secrets.",
    ),
    click.option(
        "--read-committed", is_flag=True, help="Leave out records of aborted transactions."
    ),
    click.option(
        "--allow-data-loss",
        is_flag=True,
        help="Continue if records of the plan are lost, and report the gaps.",
    ),
    click.option("--columns", metavar="A,B,...", help="Columns to write.  [default: all]"),
    click.option("--headers", is_flag=True, help="Also write the records' headers."),
    click.option(
        "--value-format",
        type=click.Choice(KINDS),
        help="Decode values into columns; other records go to _rejected, with the reason.",
    ),
    click.option(
        "--value-schema",
        metavar="FILE",
        help="Schema: Spark's DDL for json, .avsc for avro, a descriptor set (protoc) for "
        "protobuf.",
    ),
    click.option("--value-message", metavar="NAME", help="Full name of the Protobuf message."),
    click.option(
        "--value-framing",
        type=click.Choice([NO_FRAMING, CONFLUENT]),
        help="Whether each value begins with a schema id.  [default: confluent with "
        "--schema-registry, otherwise none]",
    ),
    click.option(
        "--schema-registry",
        metavar="URL",
        help="Schema registry with the writers' Avro schemas; credentials in MQ_REGISTRY_USERNAME "
        "and MQ_REGISTRY_PASSWORD, or in MQ_REGISTRY_TOKEN.",
    ),
    click.option(
        "--registry-ca", metavar="FILE", help="PEM file of the registry's certificate authorities."
    ),
    click.option(
        "--schema-id",
        type=click.IntRange(0),
        metavar="ID",
        help="Id of the Avro schema in the registry, instead of --value-schema.",
    ),
    click.option("--compression", type=click.Choice(CODECS), default="snappy", show_default=True),
    click.option("--client-id", metavar="ID", help="Client id for quotas, one for the job."),
    click.option(
        "--commit-group",
        "group",
        metavar="GROUP",
        help="Then commit the offsets for this consumer group, whose lag tools can show. Where a "
        "load begins is still decided by the table.",
    ),
    click.option(
        "--rack", metavar="RACK", help="Rack of this client, to read from the nearest replica."
    ),
    click.option(
        "--max-records-per-range",
        type=click.IntRange(1),
        default=DEFAULT_RECORDS_PER_RANGE,
        show_default=True,
        help="Size of a range, which is one task and one file; a retry repeats it.",
    ),
    click.option("--max-bytes-per-range", type=click.IntRange(1), metavar="BYTES"),
    click.option(
        "--min-ranges",
        type=click.IntRange(1),
        help="Divide further, into at least this many tasks.",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(0.1, 3600),
        metavar="SECONDS",
        help=f"Time for one call with its retries.  [default: {DEFAULT_TIMEOUT_S:g}]",
    ),
    click.option(
        "--discard-unfinished",
        is_flag=True,
        help="Discard an unfinished load, and make a new plan.",
    ),
    click.option("--format", "form", type=click.Choice(["text", "json"]), default="text"),
    security_options,
)


def _source_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_SOURCE):
        function = option(function)
    return function


def _job(options: dict[str, Any]) -> LoadJob:
    given = {**options, "output": None}  # for mq-admin, "output" is a format
    settings = resolve(given, os.environ)
    columns = options["columns"]
    return LoadJob(
        topics=tuple(dict.fromkeys(options["topics"])),
        output=options["output"],
        connecting=Connecting(
            settings.bootstrap,
            settings.security,
            options["client_id"] or new_client_id(),
            options["rack"] or "",
            options["timeout_s"] or DEFAULT_TIMEOUT_S,
        ),
        starting=options["starting"],
        ending=options["ending"],
        settings=TableSettings(
            None if columns is None else tuple(name.strip() for name in columns.split(",")),
            options["headers"],
            options["compression"],
            _value_schema(options),
        ),
        read_committed=options["read_committed"],
        fail_on_data_loss=not options["allow_data_loss"],
        data_loss_option="--allow-data-loss",
        sizes=RangeSizes(
            options["min_ranges"],
            options["max_records_per_range"],
            options["max_bytes_per_range"],
        ),
        storage_options=read_storage_options(options["storage_options"]),
        discard_unfinished=options["discard_unfinished"],
        registry_auth=_registry_auth(options["registry_ca"], os.environ),
        has_own_client_id=options["client_id"] is not None,
        group=options["group"],
    )


def _value_schema(options: dict[str, Any]) -> ValueSchemaSpec | None:
    kind = options["value_format"]
    given = (
        "value_schema",
        "value_message",
        "value_framing",
        "schema_registry",
        "schema_id",
        "registry_ca",
    )
    if kind is None:
        for name in given:
            if options[name] is not None:
                raise UsageError(f"--{name.replace('_', '-')} needs --value-format as well")
        return None
    path = options["value_schema"]
    data = b"" if path is None else _read(path, _MAX_SCHEMA_BYTES)
    schema: str | bytes = data
    if kind != "protobuf":
        try:
            schema = data.decode()
        except UnicodeDecodeError:
            raise UsageError(f"{path} is not UTF-8 text") from None
    return ValueSchemaSpec(
        kind,
        schema,
        options["value_message"] or "",
        options["schema_registry"],
        options["schema_id"],
        options["value_framing"] or "",
    )


def _registry_auth(ca_file: str | None, environment: Mapping[str, str]) -> RegistryAuth | None:
    username, password, token = (
        environment.get(f"MQ_REGISTRY_{name}", "") for name in ("USERNAME", "PASSWORD", "TOKEN")
    )
    if not (username or password or token or ca_file):
        return None
    return RegistryAuth(username, password, token, ca_file or "")


def _read(path: str, max_bytes: int) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > max_bytes:
        raise UsageError(f"{path} has more than {max_bytes} bytes")
    return data


def read_storage_options(path: str | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        found = json.loads(_read(path, _MAX_OPTIONS_BYTES))
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} is not a JSON object")
    return found


@click.command("load", short_help="Load new records, or resume an interrupted load.")
@_source_options
@click.option(
    "--local", is_flag=True, help="Run tasks in processes of this machine, without Spark."
)
@click.option(
    "--master",
    metavar="URL",
    help="Spark's master.  [default: that of spark-submit, or local[*]]",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Ranges loaded at a time.  [default: the number of cores]",
)
@click.option("--dry-run", is_flag=True, help="Only show the plan, as mq-load plan.")
@click.option("--html", metavar="FILE", help="Also write the report as an HTML page.")
@click.option("--quiet", is_flag=True, help="Show no progress on stderr.")
@says_why
def load_command(
    local: bool,
    master: str | None,
    parallel: int | None,
    dry_run: bool,
    html: str | None,
    quiet: bool,
    form: str,
    **options: Any,
) -> None:
    """Load the records of a plan into a table of Parquet files, and commit them.

    The plan is stored in the output. After a crash, the same command resumes the load; after a
    commit, it loads the records appended since then. Read the table by its folder (Spark:
    spark.read.parquet(DIR); DuckDB: read_parquet('DIR/topic=*/*/*.parquet')).
    """
    job = _job(options)
    if dry_run:
        show_plan(job, plan_load(job), parallel, form)
        return
    if local and master is not None:
        raise UsageError("--local runs without Spark, but --master is given; omit one of them")
    with ExitStack() as ending:
        if local:
            runner = make_runner(None, parallel)
        else:
            from metaquorum.spark.loader.spark_runner import SparkOnDemand

            runner = spark = SparkOnDemand(master, parallel)
            ending.callback(spark.stop)
        events = ending.enter_context(watch_progress(options["client_id"], quiet=quiet))
        report = run_job(job, runner, events)
    if html is not None:
        write_html(report, html)
    if form == "json":
        show_data("json", report.to_json())
    elif report.version is None:
        click.echo(f"Nothing to load: all records up to {printable(job.ending)} are in the table.")
    else:
        show_report(report)


@click.command("plan", short_help="Show the ranges of the next load, and an estimate of the time.")
@_source_options
@click.option("--parallel", type=click.IntRange(1, 10_000), metavar="N")
@says_why
def plan_command(parallel: int | None, form: str, **options: Any) -> None:
    """Show the ranges that a load would read now, with their sizes and an estimate of the time.

    This command writes nothing and reads no record.
    """
    job = _job(options)
    show_plan(job, plan_load(job), parallel, form)
