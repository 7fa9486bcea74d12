"""Loads from a node: complete loads, killed loads, and their leftovers."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import metaquorum.spark
from metaquorum.client.administration.admin import LATEST
from metaquorum.client.cluster import TopicPartition
from metaquorum.client.errors import BrokerError
from metaquorum.client.groups.blocking import BlockingGroupAdmin
from metaquorum.client.producer import ProducerRecord
from metaquorum.client.security import Login, Security, Tls
from metaquorum.client.socket_transport import BlockingAdmin, connect
from metaquorum.client.transactions.blocking import BlockingTransactionalProducer
from metaquorum.client.transactions.transactional_producer import TransactionalProducer
from metaquorum.metadata.quota_lookup import QuotaEntity
from metaquorum.spark.errors import LoadError
from metaquorum.spark.gaps import GapReason
from metaquorum.spark.loader.coordinator import Events
from metaquorum.spark.loader.errors import (
    LoaderError,
    RangesFailedError,
    RefusedError,
    UsageError,
)
from metaquorum.spark.loader.load_job import LoadJob, committed_files, plan_load, read_report
from metaquorum.spark.loader.load_report import LoadReport
from metaquorum.spark.loader.process_runner import MAX_ATTEMPTS
from metaquorum.spark.loader.storage.local_storage import LocalStorage
from metaquorum.spark.loader.table.committed_table import Table
from metaquorum.spark.options import Connecting
from metaquorum.spark.value_schemas.spec import ValueSchemaSpec
from metaquorum.wire.primitives.errors import KafkaError
from tests.cli.admin.test_security import PASSWORD, Guarded
from tests.conftest import NewNode
from tests.group_members import member
from tests.metaquorum.spark.conftest import text_of
from tests.metaquorum.spark.loader.processes import (
    LoadProcess,
    is_committed,
    is_running,
    results_in,
)
from tests.metaquorum.spark.topics import filled_topic, new_topic, send
from tests.nodes import PATIENCE_S, Node, Peer, elsewhere, unique, wait_until

BEGAN_MS = 1_700_000_000_000
PARTITIONS = 2
COUNT = 6000
ATTEMPTS = 5
WORKER = b"loader.tasks.worker"

pytestmark = pytest.mark.slow


def record(number: int) -> ProducerRecord:
    """Some keys and values are missing; timestamps rise by a millisecond."""
    return ProducerRecord(
        None if number % 7 == 0 else b"value %d" % number,
        None if number % 3 == 0 else b"key %d" % number,
        (),
        BEGAN_MS + number,
        number % PARTITIONS,
    )


@pytest.fixture(scope="module")
def topic(either: Peer) -> str:
    """Number n is in partition n % 2, at offset n // 2."""
    return filled_topic(either.bootstrap, map(record, range(COUNT)), PARTITIONS)


@pytest.fixture(scope="module")
def own_topic(node: Peer) -> str:
    return filled_topic(node.bootstrap, map(record, range(COUNT)), PARTITIONS)


def load(bootstrap: str, topic: str, output: Path, **options: Any) -> LoadReport:
    given = {"max_records_per_range": 1000, "parallel": 2, "timeout_s": PATIENCE_S} | options
    return metaquorum.spark.load(topic, str(output), bootstrap=bootstrap, **given)


def rows_of(output: Path) -> list[dict[str, Any]]:
    """Return the rows that a reader of the folder sees, in order."""
    found = ds.dataset(str(output), format="parquet", partitioning="hive").to_table()
    rows: list[dict[str, Any]] = found.to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def assert_whole(output: Path, count: int = COUNT) -> None:
    """Assert that the table has each record once, unchanged."""
    rows = rows_of(output)
    where = [(number % PARTITIONS, number // PARTITIONS) for number in range(count)]
    assert [(row["partition"], row["offset"]) for row in rows] == sorted(where)
    for row in rows:
        sent = record(row["offset"] * PARTITIONS + row["partition"])
        assert (row["key"], row["value"]) == (sent.key, sent.value)
        assert row["timestamp"].timestamp() * 1000 == pytest.approx(sent.timestamp_ms, abs=0.01)
    assert not (output / "_loading").exists()
    assert len(committed_files(str(output))) == len(list(output.rglob("*.parquet")))


def test_a_load_has_each_record_once(either: Peer, topic: str, tmp_path: Path) -> None:
    report = load(either.bootstrap, topic, tmp_path / "out")
    assert (report.version, report.records, report.missing) == (1, COUNT, {})
    assert len(report.rows) == 6
    assert_whole(tmp_path / "out")
    first = report.rows[0].result.report
    assert (first.first_offset, first.last_offset) == (0, 999)
    assert (first.min_timestamp_ms, first.max_timestamp_ms) == (BEGAN_MS, BEGAN_MS + 1998)
    kept = read_report(str(tmp_path / "out")).to_json()
    assert kept | {"output": report.output} == report.to_json()


class Refusals(Events):
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def on_group_refused(self, group: str, reason: str) -> None:
        self.reasons.append(reason)


def test_the_offsets_of_a_load_are_committed_for_a_group(either: Peer, tmp_path: Path) -> None:
    name, group = filled_topic(either.bootstrap, map(record, range(6)), PARTITIONS), unique("group")

    def loaded() -> list[str]:
        refusals = Refusals()
        load(either.bootstrap, name, tmp_path / "out", group=group, events=refusals)
        with connect(either.bootstrap, timeout_s=PATIENCE_S) as cluster:
            found = BlockingGroupAdmin(cluster).committed_offsets([group])[group]
        assert not isinstance(found, KafkaError)
        committed.append({where.partition: each.offset for where, each in found.items()})
        return refusals.reasons

    committed: list[dict[int, int]] = []
    assert loaded() == []
    with connect(either.bootstrap, timeout_s=PATIENCE_S) as cluster:
        send(cluster, name, [record(6), record(7)])
    with member(either.bootstrap, group, [name]):
        (reason,) = loaded()
        assert "the group has members" in reason
    assert loaded() == []  # there is nothing to load, but offsets to commit
    assert committed == [{0: 3, 1: 3}, {0: 3, 1: 3}, {0: 4, 1: 4}]
    assert_whole(tmp_path / "out", 8)


@pytest.mark.parametrize("output", ["~/table", "table", "file://{home}/table"])
def test_an_output_is_the_same_folder_for_drivers_and_tasks(
    node: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    name = filled_topic(node.bootstrap, [record(0)])
    where = output.format(home=tmp_path)
    report = metaquorum.spark.load(name, where, bootstrap=node.bootstrap, timeout_s=PATIENCE_S)
    assert report.output == str(tmp_path / "table")
    assert len(rows_of(tmp_path / "table")) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


def test_a_row_group_has_many_batches(node: Peer, tmp_path: Path) -> None:
    """The batches have 4 MiB each, and stay in memory until the row group is written."""
    values = [b"%d " % number * 200 for number in range(12_000)]
    name = filled_topic(node.bootstrap, map(ProducerRecord, values))
    report = load(node.bootstrap, name, tmp_path / "out", max_records_per_range=None)
    (file,) = (tmp_path / "out").rglob("*.parquet")
    assert pq.ParquetFile(file).num_row_groups == len(report.rows) == 1
    assert [row["value"] for row in rows_of(tmp_path / "out")] == values


def test_loads_go_on_where_the_last_one_ended(node: Peer, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with connect(node.bootstrap, timeout_s=PATIENCE_S) as cluster:
        name = new_topic(cluster, PARTITIONS)
        for version in range(3):
            send(cluster, name, map(record, range(version * 100, version * 100 + 100)))
            report = load(node.bootstrap, name, output)
            assert (report.version, report.records) == (version + 1, 100)
            assert_whole(output, version * 100 + 100)
    assert load(node.bootstrap, name, output).version is None


@pytest.mark.parametrize("commits", [True, False])
def test_the_load_after_an_open_transaction_has_its_outcome(
    either: Peer, tmp_path: Path, commits: bool
) -> None:
    """One output is loaded with read_committed, another with read_uncommitted before the end."""
    output, mixed = tmp_path / "out", tmp_path / "mixed"

    def values(path: Path) -> list[bytes]:
        return [row["value"] for row in rows_of(path)]

    with connect(either.bootstrap, timeout_s=PATIENCE_S) as cluster:
        name = new_topic(cluster)
        client = TransactionalProducer(cluster, unique("load"))
        producer, admin = BlockingTransactionalProducer(client), BlockingAdmin(cluster)
        send(cluster, name, [ProducerRecord(b"before")])
        producer.init()
        producer.begin()
        producer.send(name, [ProducerRecord(b"inside"), ProducerRecord(b"inside, too")])
        send(cluster, name, [ProducerRecord(b"behind")])
        assert load(either.bootstrap, name, output, read_committed=True).records == 1
        assert load(either.bootstrap, name, output, read_committed=True).version is None
        assert load(either.bootstrap, name, mixed).records == 4
        assert load(either.bootstrap, name, mixed, read_committed=True).version is None
        if commits:
            producer.commit()
        else:
            producer.abort()

        def has_ended() -> bool:
            where = TopicPartition(name, 0)
            stable = admin.list_offsets({where: LATEST}, read_committed=True)[where]
            return not isinstance(stable, BrokerError) and stable.offset == 5

        wait_until(has_ended, what="the marker")
    report = load(either.bootstrap, name, output, read_committed=True)
    inside = [b"inside", b"inside, too"]
    assert values(output) == [b"before", *(inside if commits else []), b"behind"]
    lost = {} if commits else {GapReason.ABORTED: 2}
    assert report.missing == {GapReason.CONTROL: 1} | lost
    load(either.bootstrap, name, mixed, read_committed=True)
    assert values(mixed) == [b"before", *inside, b"behind"]


def test_a_load_may_begin_and_end_at_a_time(node: Peer, own_topic: str, tmp_path: Path) -> None:
    limits = {"starting": "2023-11-14T22:13:21Z", "ending": "2023-11-14T22:13:23Z"}
    report = load(node.bootstrap, own_topic, tmp_path / "out", **limits)
    assert report.records == 2000
    offsets = {row["offset"] for row in rows_of(tmp_path / "out")}
    assert (min(offsets), max(offsets)) == (500, 1499)
    later = load(node.bootstrap, own_topic, tmp_path / "out", starting=limits["starting"])
    assert later.records == COUNT - 3000


def test_offsets_that_leave_a_gap_are_refused(node: Peer, own_topic: str, tmp_path: Path) -> None:
    load(node.bootstrap, own_topic, tmp_path / "out", starting="10", ending="20")
    with pytest.raises(RefusedError, match="would leave a gap"):
        load(node.bootstrap, own_topic, tmp_path / "out", starting="21", ending="30")
    with pytest.raises(RefusedError, match="would leave an overlap"):
        load(node.bootstrap, own_topic, tmp_path / "out", starting="19", ending="30")
    again = load(node.bootstrap, own_topic, tmp_path / "out", starting="10", ending="30")
    assert again.records == 2 * 10


def test_columns_and_headers_are_chosen(node: Peer, tmp_path: Path) -> None:
    sent = [ProducerRecord(b"v", b"k", (("name", b"x"), ("none", None)), BEGAN_MS)]
    name = filled_topic(node.bootstrap, sent)
    load(node.bootstrap, name, tmp_path / "all", include_headers=True, compression="zstd")
    (row,) = rows_of(tmp_path / "all")
    assert row["headers"] == [{"key": "name", "value": b"x"}, {"key": "none", "value": None}]
    load(node.bootstrap, name, tmp_path / "some", columns=["offset", "topic"])
    assert rows_of(tmp_path / "some") == [{"offset": 0, "topic": name, "partition": 0}]


def test_values_that_are_not_of_the_schema_go_to_a_side_table(node: Peer, tmp_path: Path) -> None:
    values = [b'{"id": 1, "name": "one"}', b"no JSON", None, b'{"id": "two"}', b'{"id": 3}']
    name = filled_topic(node.bootstrap, (ProducerRecord(v, b"k", (), BEGAN_MS) for v in values))
    output = tmp_path / "out"
    options = {"value_schema": ValueSchemaSpec("json", "id BIGINT NOT NULL, name STRING")}
    report = load(node.bootstrap, name, output, columns=["value", "offset"], **options)
    assert (report.records, report.rejected) == (5, 3)
    at = {"topic": name, "partition": 0}
    assert rows_of(output) == [
        {"id": 1, "name": "one", "offset": 0} | at,
        {"id": 3, "name": None, "offset": 4} | at,
    ]
    rejected = rows_of(output / "_rejected")
    assert [(row["offset"], row["key"], row["value"]) for row in rejected] == [
        (offset, b"k", values[offset]) for offset in (1, 2, 3)
    ]
    assert all(row["reason"] and row["timestamp"] for row in rejected)
    assert [Path(path).parent.parent.parent for path in committed_files(str(output))] == [output]
    other = ValueSchemaSpec("json", "id INT")
    send_more(node.bootstrap, name)
    with pytest.raises(RefusedError, match="another value schema"):
        load(node.bootstrap, name, output, columns=["value", "offset"], value_schema=other)


@pytest.mark.parametrize("schema", [None, ValueSchemaSpec("json", "id BIGINT")])
def test_a_timestamp_out_of_range_does_not_stop_a_load(
    either: Peer, tmp_path: Path, schema: ValueSchemaSpec | None
) -> None:
    """A broker accepts it by default: message.timestamp.before.max.ms has no limit."""
    times = [BEGAN_MS, -(10**16), BEGAN_MS + 1]
    sent = (ProducerRecord(b'{"id": 1}', None, (), time) for time in times)
    name = filled_topic(either.bootstrap, sent)
    report = load(either.bootstrap, name, tmp_path / "out", value_schema=schema)
    assert (report.records, report.missing, report.rejected) == (3, {}, 0)
    rows = rows_of(tmp_path / "out")
    assert [row["offset"] for row in rows] == [0, 1, 2]
    assert [row["timestamp"] is None for row in rows] == [False, True, False]
    found = report.rows[0].result.report
    assert (found.min_timestamp_ms, found.max_timestamp_ms) == (BEGAN_MS, BEGAN_MS + 1)


def send_more(bootstrap: str, name: str) -> None:
    with connect(bootstrap, timeout_s=PATIENCE_S) as cluster:
        send(cluster, name, [record(0)])


def test_deleted_records_are_an_error_or_a_gap_with_its_reason(node: Peer, tmp_path: Path) -> None:
    name = filled_topic(node.bootstrap, (record(2 * n) for n in range(100)))
    output = tmp_path / "out"
    load(node.bootstrap, name, output, ending="10")
    with connect(node.bootstrap, timeout_s=PATIENCE_S) as cluster:
        where = TopicPartition(name, 0)
        deleted = BlockingAdmin(cluster).delete_records({where: 25})[where]
        assert not isinstance(deleted, BrokerError)
    with pytest.raises((LoadError, LoaderError), match="10 to 24"):
        load(node.bootstrap, name, output)
    report = load(node.bootstrap, name, output, fail_on_data_loss=False)
    assert report.missing == {GapReason.DELETED: 15}
    (gap,) = report.rows[0].result.report.gaps
    assert (gap.start, gap.end) == (10, 25)
    assert [row["offset"] for row in rows_of(output)] == [*range(10), *range(25, 100)]


def test_a_quota_of_the_job_slows_it_down_and_is_reported(
    start_node: NewNode, tmp_path: Path
) -> None:
    """Quotas apply to one client id for all processes.

    The quota window is one second: each answer, a whole batch, has more bytes than it allows.
    """
    node = start_node({"quota.window.num": 2})
    values = [b"%06d" % number * 100 for number in range(80)]
    name = filled_topic(node.bootstrap, map(ProducerRecord, values))
    job = QuotaEntity(client_id="job")
    with connect(node.bootstrap, timeout_s=PATIENCE_S) as cluster:
        rate = {"consumer_byte_rate": 40_000.0}
        assert BlockingAdmin(cluster).alter_client_quotas({job: rate}) == {job: None}
    options = {"client_id": "job", "max_records_per_range": 20}
    report = load(node.bootstrap, name, tmp_path / "out", **options)
    assert report.throttled_ms > 0
    assert [row["value"] for row in rows_of(tmp_path / "out")] == values


def test_an_empty_topic_is_nothing_to_load(node: Peer, tmp_path: Path) -> None:
    with connect(node.bootstrap, timeout_s=PATIENCE_S) as cluster:
        name = new_topic(cluster)
    assert load(node.bootstrap, name, tmp_path / "out").version is None


def test_a_plan_reads_nothing_and_writes_nothing(
    node: Peer, own_topic: str, tmp_path: Path
) -> None:
    job = LoadJob((own_topic,), str(tmp_path / "out"), Connecting(node.bootstrap))
    found = plan_load(job)
    assert found.plan is not None
    assert sum(each.offsets for each in found.plan.ranges) == COUNT
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"starting": "latest"},
        {"ending": "earliest"},
        {"starting": "soon"},
        {"columns": ["nothing"]},
        {"columns": ["topic"]},
        {"columns": ["headers"]},
        {"compression": "best"},
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        load("localhost:1", "topic", tmp_path / "out", **wrong)
    assert list(tmp_path.iterdir()) == []


# Crashes


def arguments(bootstrap: str, topic: str, output: Path, records: int) -> list[object]:
    return [
        *("-b", bootstrap, "--topic", topic, "--output", output, "--local", "--parallel", 1),
        *("--max-records-per-range", records),
    ]


def half_way(folder: Path, bootstrap: str, topic: str, **environment: str) -> LoadProcess:
    """Start a load of 120 ranges into `folder / "out"`, and stop it when some have results."""
    process = LoadProcess(
        folder, arguments(bootstrap, topic, folder / "out", COUNT // 120), **environment
    )
    wait_until(
        lambda: (
            process.process.poll() is not None
            or is_committed(folder / "out")
            or results_in(folder / "out") > 3
        ),
        what="some results",
    )
    os.kill(process.pid, signal.SIGSTOP)
    return process


def killed_half_way(folder: Path, bootstrap: str, topic: str) -> Path:
    """Return the output of a load whose driver died when some ranges had results."""
    for attempt in range(ATTEMPTS):
        process = half_way(folder / str(attempt), bootstrap, topic)
        process.kill()
        output = folder / str(attempt) / "out"
        if not is_committed(output):
            return output
    raise AssertionError("each load was done before it could be killed")


def test_a_driver_that_is_killed_is_gone_on_with(
    node: Peer, own_topic: str, tmp_path: Path
) -> None:
    output = killed_half_way(tmp_path, node.bootstrap, own_topic)
    done = results_in(output)
    assert done > 3
    assert list(output.rglob("*.parquet")) == []
    again = LoadProcess(tmp_path / "again", arguments(node.bootstrap, own_topic, output, 50))
    assert again.wait() == 0, again.stderr.read_text()
    assert "started by an earlier run" in again.stdout.read_text()
    assert_whole(output)
    assert len(read_report(str(output)).rows) == 120


def test_another_command_does_not_go_on_with_it_but_may_discard_it(
    node: Peer, own_topic: str, tmp_path: Path
) -> None:
    output = killed_half_way(tmp_path, node.bootstrap, own_topic)
    with pytest.raises(RefusedError, match="was started with other arguments"):
        load(node.bootstrap, own_topic, output, compression="zstd")
    options = {"ending": "100", "compression": "zstd", "discard_unfinished": True}
    load(node.bootstrap, own_topic, output, **options)
    assert_whole(output, 200)


def test_tonights_load_finishes_that_of_last_night_first(node: Peer, tmp_path: Path) -> None:
    name = filled_topic(node.bootstrap, map(record, range(COUNT)), PARTITIONS)
    output = killed_half_way(tmp_path, node.bootstrap, name)
    with connect(node.bootstrap, timeout_s=PATIENCE_S) as cluster:
        send(cluster, name, map(record, range(COUNT, COUNT + 100)))
    report = load(node.bootstrap, name, output, ending=str(COUNT // 2 + 50))
    assert (report.version, report.records, report.resumed) == (2, 100, False)
    assert read_report(str(output), 1).records == COUNT
    assert_whole(output, COUNT + 100)


def test_a_load_that_is_interrupted_says_how_to_go_on(
    node: Peer, own_topic: str, tmp_path: Path
) -> None:
    for attempt in range(ATTEMPTS):
        process = half_way(tmp_path / str(attempt), node.bootstrap, own_topic)
        process.process.send_signal(signal.SIGINT)
        os.kill(process.pid, signal.SIGCONT)
        if process.wait():
            break
    assert process.process.returncode == 130
    said = process.stderr.read_text()
    assert said == "mq-load: interrupted; the same command continues from here\n"
    output = tmp_path / str(attempt) / "out"
    load(node.bootstrap, own_topic, output, max_records_per_range=COUNT // 120)
    assert_whole(output)


def test_a_job_has_one_client_id_for_all_its_runs(
    node: Peer, own_topic: str, tmp_path: Path
) -> None:
    output = killed_half_way(tmp_path, node.bootstrap, own_topic)
    plan = Table(LocalStorage(str(output))).plan(1)
    assert plan.client_id.startswith("mq-load-")
    assert load(node.bootstrap, own_topic, output).client_id == plan.client_id
    report = load(node.bootstrap, own_topic, tmp_path / "other", client_id="ours")
    assert report.client_id == "ours"


def test_a_range_that_fails_leaves_the_others_as_they_are(node: Peer, tmp_path: Path) -> None:
    name = filled_topic(node.bootstrap, map(record, range(400)), PARTITIONS)
    output = tmp_path / "out"

    class Deletes(Events):
        def on_plan(self, plan: object, done: int) -> None:
            with connect(node.bootstrap, timeout_s=PATIENCE_S) as cluster:
                BlockingAdmin(cluster).delete_records({TopicPartition(name, 1): 150})

    options = {"max_records_per_range": 100, "parallel": 1}
    with pytest.raises(RangesFailedError, match=r"1 of 4 ranges .* offsets 0 to 99 .* are deleted"):
        load(node.bootstrap, name, output, events=Deletes(), **options)
    assert results_in(output) == 2
    report = load(node.bootstrap, name, output, fail_on_data_loss=False, **options)
    assert (report.resumed, report.missing) == (True, {GapReason.DELETED: 150})
    assert [row["offset"] for row in rows_of(output)] == [*range(200), *range(150, 200)]


class KillsWorkers(Events):
    """Kills all workers of this process when a range begins, a number of times.

    Each time may be during the same range, which is given up after MAX_ATTEMPTS.
    """

    def __init__(self, times: int) -> None:
        self.killed: list[int] = []
        self._times = times

    def on_range(self, index: int, what: object) -> None:
        if self._times and (killed := kill_descendants(os.getpid(), WORKER)):
            self.killed += killed
            self._times -= 1


def kill_descendants(ancestor: int, word: bytes) -> list[int]:
    """Kill the descendant processes whose command contains the word; return their ids."""
    killed = []
    for pid in descendants(ancestor, word):
        with suppress(ProcessLookupError):  # it has ended since the list was made
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return killed


def descendants(ancestor: int, word: bytes) -> list[int]:
    """Return the descendant processes whose command contains the word."""
    parents, commands = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                commands[int(entry.name)] = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return [pid for pid in found if word in commands.get(pid, b"")]


def test_workers_that_are_killed_are_replaced(node: Peer, own_topic: str, tmp_path: Path) -> None:
    times = MAX_ATTEMPTS - 1
    events = KillsWorkers(times)
    options = {"max_records_per_range": 100, "events": events}
    report = load(node.bootstrap, own_topic, tmp_path / "out", **options)
    assert len(events.killed) >= times
    assert report.records == COUNT
    assert_whole(tmp_path / "out")
    assert not any(is_running(pid) for pid in events.killed)


def test_a_second_driver_is_refused_while_one_works(
    node: Peer, own_topic: str, tmp_path: Path
) -> None:
    for attempt in range(ATTEMPTS):
        process = half_way(tmp_path / str(attempt), node.bootstrap, own_topic)
        output = tmp_path / str(attempt) / "out"
        if is_committed(output):
            process.kill()
            continue
        try:
            with pytest.raises(RefusedError, match=f"is in progress, by process {process.pid} on"):
                load(node.bootstrap, own_topic, output, max_records_per_range=50)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        assert process.wait() == 0, process.stderr.read_text()
        assert_whole(output)
        return
    raise AssertionError("each load was done before it could be stopped")


def test_an_unfinished_load_of_a_topic_that_is_gone_is_told(node: Peer, tmp_path: Path) -> None:
    name = filled_topic(node.bootstrap, map(record, range(COUNT)), PARTITIONS)
    output = killed_half_way(tmp_path, node.bootstrap, name)
    with connect(node.bootstrap, timeout_s=PATIENCE_S) as cluster:
        assert BlockingAdmin(cluster).delete_topics([name]) == {name: None}
    again = arguments(node.bootstrap, name, output, 50)
    process = LoadProcess(tmp_path / "again", again)
    assert process.wait() == 1
    said = process.stderr.read_text()
    assert f"topic {name} of the unfinished load 1 no longer exists" in said


# Secrets


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    made.node.start()
    yield made
    made.node.stop()


def all_arguments() -> str:
    """Return the arguments of every process of this machine, as ps shows them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except (OSError, UnicodeDecodeError):
                continue
    return "\n".join(found)


def security_of(guarded: Guarded) -> Security:
    return Security(Tls(guarded.authority.path), Login("SCRAM-SHA-512", "admin", PASSWORD))


@pytest.mark.skipif(bool(elsewhere()), reason="another cluster has other users")
def test_no_password_is_in_files_output_or_arguments(guarded: Guarded, tmp_path: Path) -> None:
    name = filled_topic(guarded.plain, map(record, range(COUNT)), PARTITIONS)
    by_environment = {
        "MQ_USERNAME": "admin",
        "MQ_PASSWORD": PASSWORD,
        "MQ_TLS_AUTHORITIES": guarded.authority.path,
    }
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        process = half_way(folder, guarded.node.bootstrap, name, **by_environment)
        workers = process.workers()
        shown = all_arguments()
        inherited = [Path(f"/proc/{pid}/environ").read_bytes() for pid in workers]
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait() == 0, process.stderr.read_text()
        if workers:
            break
    assert "loader.tasks.worker" in shown
    assert PASSWORD not in shown
    assert not any(PASSWORD.encode() in each for each in inherited)
    assert PASSWORD not in text_of(folder)
    assert "admin" not in text_of(folder / "out" / "_metaquorum")
    assert_whole(folder / "out")


@pytest.mark.skipif(bool(elsewhere()), reason="another cluster has other users")
def test_a_wrong_password_is_a_sentence_without_it(guarded: Guarded, tmp_path: Path) -> None:
    wrong = PASSWORD + " no more"
    arguments_ = arguments(guarded.node.bootstrap, "any", tmp_path / "out", 10)
    process = LoadProcess(
        tmp_path / "process",
        arguments_,
        MQ_USERNAME="admin",
        MQ_PASSWORD=wrong,
        MQ_TLS_AUTHORITIES=guarded.authority.path,
    )
    assert process.wait() == 1
    said = process.stderr.read_text()
    assert said.startswith("mq-load: ")
    assert "Traceback" not in said
    assert wrong not in text_of(tmp_path)


def test_a_node_that_dies_meanwhile_is_waited_for(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    node.start()
    try:
        name = filled_topic(node.bootstrap, map(record, range(COUNT)), PARTITIONS)

        class Restarts(Events):
            def on_plan(self, plan: object, done: int) -> None:
                node.kill()
                node.start()

        load(node.bootstrap, name, tmp_path / "out", events=Restarts())
        assert_whole(tmp_path / "out")
    finally:
        node.stop()
