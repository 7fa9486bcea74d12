"""Programming interface of loads: `load`, `plan_load`, `read_report` and `committed_files`."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

from metaquorum.client.cluster import Cluster, parse_bootstrap
from metaquorum.client.security import PLAINTEXT, Security
from metaquorum.spark.cluster_access import open_cluster
from metaquorum.spark.loader.coordinator import (
    Events,
    LoadRequest,
    new_driver_id,
    run_load,
)
from metaquorum.spark.loader.driver_lock import hold
from metaquorum.spark.loader.errors import OutputError, UsageError
from metaquorum.spark.loader.group_offsets import commit_for_group
from metaquorum.spark.loader.limits import parse_ending, parse_starting
from metaquorum.spark.loader.load_report import LoadReport
from metaquorum.spark.loader.planner import ClusterPlanner, RangeSizes
from metaquorum.spark.loader.runner import Runner
from metaquorum.spark.loader.storage.interface import open_storage
from metaquorum.spark.loader.table.committed_table import Table
from metaquorum.spark.loader.table.load_plan import (
    CODECS,
    FILE_COLUMNS,
    HEADERS,
    PATH_COLUMNS,
    LoadPlan,
    TableSettings,
)
from metaquorum.spark.loader.table.manifest import Manifest
from metaquorum.spark.loader.table.recovery import RunPlan, next_step
from metaquorum.spark.offset_ranges import ReadPlan, is_topic_name
from metaquorum.spark.options import DEFAULT_TIMEOUT_S, Connecting, FetchOptions
from metaquorum.spark.value_schemas import RegistryAuth, ValueSchemaSpec, open_decoder
from metaquorum.wire.primitives.frozen import frozen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# Upper bound for the records that a retry reads again: a few seconds of work.
DEFAULT_RECORDS_PER_RANGE: Final = 2_000_000


@frozen
class LoadJob:
    """Topics, output and settings of one load. Raises UsageError if a field is invalid."""

    topics: tuple[str, ...]
    output: str
    connecting: Connecting
    starting: str = "earliest"
    ending: str = "latest"
    settings: TableSettings = TableSettings()
    read_committed: bool = False
    fail_on_data_loss: bool = True
    sizes: RangeSizes = RangeSizes(max_records=DEFAULT_RECORDS_PER_RANGE)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    discard_unfinished: bool = False
    registry_auth: RegistryAuth | None = field(default=None, repr=False)
    has_own_client_id: bool = False  # False: the client id was generated
    group: str | None = None  # the group for which the offsets are committed
    data_loss_option: str = "fail_on_data_loss=False"  # as the user gives it, for errors

    def __post_init__(self) -> None:
        if not self.topics:
            raise UsageError("no topic is given; specify at least one")
        for name in self.topics:
            if not is_topic_name(name):
                raise UsageError(f"{name[:300]!r} is not a valid topic name")
        parse_starting(self.starting)
        parse_ending(self.ending)
        check_settings(self.settings)
        try:
            parse_bootstrap(self.connecting.bootstrap)
        except ValueError as error:
            raise UsageError(f"the bootstrap addresses: {error}") from None
        if self.group == "":
            raise UsageError("the group id is empty")

    @property
    def fetch(self) -> FetchOptions:
        return FetchOptions(
            self.connecting,
            self.read_committed,
            self.fail_on_data_loss,
            self.settings.include_headers,
            self.settings.read_columns,
            data_loss_option=self.data_loss_option,
        )

    @property
    def request(self) -> Mapping[str, Any]:
        """Arguments of the load, which a later run compares: the same for the same command."""
        return {
            "topics": sorted(self.topics),
            "from": self.starting,
            "to": self.ending,
            "isolation": "read_committed" if self.read_committed else "read_uncommitted",
        }

    def planner(self, cluster: Cluster) -> ClusterPlanner:
        return ClusterPlanner(
            cluster,
            sorted(set(self.topics)),
            parse_starting(self.starting),
            parse_ending(self.ending),
            self.sizes,
            self.fetch,
        )


def check_settings(settings: TableSettings) -> None:
    """Raise UsageError if the compression or the columns are invalid."""
    if settings.compression not in CODECS:
        raise UsageError(f"the compression must be one of {', '.join(CODECS)}")
    if settings.columns is None:
        return
    known = (*FILE_COLUMNS, *PATH_COLUMNS, *((HEADERS,) if settings.include_headers else ()))
    for name in settings.columns:
        if name not in known:
            hint = "; headers need --headers as well" if name == HEADERS else ""
            raise UsageError(
                f"column {name!r} does not exist; the columns are {', '.join(known)}{hint}"
            )
    if len(set(settings.columns)) < len(settings.columns):
        raise UsageError("a column is named twice")
    if settings.value_schema is not None and "value" not in settings.columns:
        raise UsageError("values can be decoded only if the column value is loaded: name it, too")
    if not settings.file_columns:
        raise UsageError(
            "topic and partition are in the paths of the files; name another column as well"
        )


def load(
    topics: str | Sequence[str],
    output: str,
    *,
    bootstrap: str,
    starting: str = "earliest",
    ending: str = "latest",
    security: Security = PLAINTEXT,
    columns: Sequence[str] | None = None,
    include_headers: bool = False,
    compression: str = "snappy",
    read_committed: bool = False,
    fail_on_data_loss: bool = True,
    client_id: str | None = None,
    rack: str = "",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    min_ranges: int | None = None,
    max_records_per_range: int | None = DEFAULT_RECORDS_PER_RANGE,
    max_bytes_per_range: int | None = None,
    parallel: int | None = None,
    spark: SparkSession | None = None,
    value_schema: ValueSchemaSpec | None = None,
    registry_auth: RegistryAuth | None = None,
    storage_options: Mapping[str, Any] | None = None,
    discard_unfinished: bool = False,
    group: str | None = None,
    events: Events | None = None,
) -> LoadReport:
    """Load the records of the topics into Parquet files in `output`, each once, and commit them.

    Blocking. If an earlier call died, this one finishes that load first, and then loads its own
    limits if they differ. After a committed load, it begins at the end of that load.
    `starting` and `ending` are "earliest" and "latest", an offset, a time (ISO 8601), or an age
    ("2h"). With a session as `spark`, its executors run the tasks, otherwise processes of this
    machine, at most `parallel` ranges at a time. `output` is a folder, or a URL that fsspec opens
    with `storage_options`. With `value_schema`, values are decoded into columns, and records whose
    values do not match go to `_rejected`, with the reason. The cluster's quotas apply to
    `client_id`, one for the whole job. With `group`, the end of each partition is then committed
    for that consumer group, whose lag monitoring tools can show; a failure of it is only logged.

    Raises LoaderError or `metaquorum.spark.errors.LoadError` if the load fails, AdminError or
    KafkaError if the cluster refuses a request; the same call again resumes the load.
    """
    job = LoadJob(
        topics=(topics,) if isinstance(topics, str) else tuple(topics),
        output=output,
        connecting=Connecting(bootstrap, security, client_id or new_client_id(), rack, timeout_s),
        starting=starting,
        ending=ending,
        settings=TableSettings(
            None if columns is None else tuple(columns), include_headers, compression, value_schema
        ),
        read_committed=read_committed,
        fail_on_data_loss=fail_on_data_loss,
        sizes=RangeSizes(min_ranges, max_records_per_range, max_bytes_per_range),
        storage_options=storage_options,
        discard_unfinished=discard_unfinished,
        registry_auth=registry_auth,
        has_own_client_id=client_id is not None,
        group=group,
    )
    return run_job(job, make_runner(spark, parallel), events)


def new_client_id() -> str:
    return f"mq-load-{secrets.token_hex(4)}"


def make_runner(spark: SparkSession | None, parallel: int | None) -> Runner:
    if spark is None:
        from metaquorum.spark.loader.process_runner import ProcessRunner

        return ProcessRunner(parallel)
    from metaquorum.spark.loader.spark_runner import SparkRunner

    return SparkRunner(spark, parallel)


def run_job(job: LoadJob, runner: Runner, events: Events | None = None) -> LoadReport:
    if job.settings.value_schema is not None:
        open_decoder(
            job.settings.value_schema, job.registry_auth
        )  # raises SchemaError now, not in the tasks
    storage = open_storage(job.output, job.storage_options)
    table = Table(storage)
    table.open_or_make()
    request = LoadRequest(
        output=storage.url if storage.is_local else job.output,
        request=job.request,
        settings=job.settings,
        fetch=job.fetch,
        storage_options=job.storage_options or {},
        discard_unfinished=job.discard_unfinished,
        registry_auth=job.registry_auth,
        has_own_client_id=job.has_own_client_id,
    )
    driver_id = new_driver_id()
    with hold(storage, driver_id), _cluster(job.connecting) as cluster:
        planner = job.planner(cluster)
        outcome = run_load(table, request, planner, runner, driver_id=driver_id, events=events)
        if not outcome.is_as_asked:
            last = run_load(table, request, planner, runner, driver_id=driver_id, events=events)
            outcome = outcome if last.manifest is None else last
        newest = table.newest(table.listing())
        if job.group is not None and newest is not None:
            _commit_for_group(cluster, job.group, newest, events)
    return LoadReport.of(
        storage.url,
        outcome.manifest,
        outcome.results,
        client_id=outcome.client_id,
        resumed=outcome.resumed,
    )


def _commit_for_group(
    cluster: Cluster, group: str, manifest: Manifest, events: Events | None
) -> None:
    reason = commit_for_group(cluster, group, manifest)
    if reason is not None:
        log.warning("the offsets of the load are not committed for group %s: %s", group, reason)
        (events or Events()).on_group_refused(group, reason)


@contextmanager
def _cluster(connecting: Connecting) -> Iterator[Cluster]:
    try:
        connected = open_cluster(connecting)
        cluster = connected.__enter__()
    except ValueError as error:
        raise UsageError(str(error)) from None
    try:
        yield cluster
    finally:
        connected.__exit__(None, None, None)


@frozen
class NextLoad:
    """Preview of the next load. `plan` None: there is nothing to load.

    `unfinished`: the interrupted load to resume; `done` of its ranges have results.
    """

    plan: ReadPlan | None
    unfinished: LoadPlan | None
    done: int
    bytes_per_s: float | None  # average of one task of the last load


def plan_load(job: LoadJob) -> NextLoad:
    """Return what `run_job` would load now. Blocking; writes nothing and reads no record."""
    table = Table(open_storage(job.output, job.storage_options))
    newest, unfinished, done, rate = None, None, 0, None
    if table.is_there():
        listing = table.listing()
        newest = table.newest(listing)
        if newest is not None:
            rate = _rate(table, newest)
            listing = replace(listing, staging={})  # a load would publish it first
        step = next_step(listing, newest)
        if isinstance(step, RunPlan) and not job.discard_unfinished:
            unfinished = table.plan(step.version)
            done = len(table.results(unfinished))
    if unfinished is not None:
        return NextLoad(unfinished.read_plan, unfinished, done, rate)
    with _cluster(job.connecting) as cluster:
        return NextLoad(job.planner(cluster).make(newest), None, 0, rate)


def _rate(table: Table, manifest: Manifest) -> float | None:
    report = table.report(manifest)
    elapsed_ms = sum(each.elapsed_ms for each in report)
    size = sum(each.report.fetched_bytes for each in report)
    return 1000 * size / elapsed_ms if elapsed_ms and size else None


def read_report(
    output: str, version: int | None = None, storage_options: Mapping[str, Any] | None = None
) -> LoadReport:
    """Return the report of the committed load `version`, or of the newest.

    Raises OutputError if the output is not a table or does not have the load.
    """
    table = _existing(output, storage_options)
    listing = table.listing()
    if not listing.newest:
        raise OutputError(f"{table.storage.url} has no committed load yet")
    version = listing.newest if version is None else version
    if version not in listing.manifests:
        raise OutputError(
            f"{table.storage.url} has no load {version}; there are 1 to {listing.newest}"
        )
    manifest = table.manifest(version)
    return LoadReport.of(
        table.storage.url,
        manifest,
        table.report(manifest),
        client_id=_client_id(table, version),
    )


def _client_id(table: Table, version: int) -> str:
    try:
        return table.plan(version).client_id
    except FileNotFoundError:  # a load does not need the plans of committed ones
        return "unknown"


def committed_files(output: str, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the paths, or URLs, of all committed data files of the table, and no others.

    A reader that lists the folder sees the same files after the last load has ended. If a file has
    moved before it is read, a load was published meanwhile: call the function again. Raises
    OutputError if the output is not a table.
    """
    table = _existing(output, storage_options)
    return [f"{table.storage.url}/{place}" for _, _, place in table.committed()]


def _existing(output: str, storage_options: Mapping[str, Any] | None) -> Table:
    table = Table(open_storage(output, storage_options))
    if not table.is_there():
        raise OutputError(f"{table.storage.url} is not a table of mq-load")
    return table
