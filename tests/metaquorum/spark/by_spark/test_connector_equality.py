"""The data source and the files of a load equal the rows that Spark's Kafka connector reads.

The topics are in a metaquorum node and in a real Kafka, written by Java's own client
(`WriteTopics.java`): every codec, headers, null and empty keys and values, compaction, log append
time, aborted transactions, and an open transaction. Needs the connector's jars
(tests/peers/spark/install), which exist for PySpark 4.2 only; without them, or without Java 17,
these tests are skipped.
"""

import subprocess
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from metaquorum.client.cluster import TopicPartition
from metaquorum.client.socket_transport import BlockingAdmin, connect
from metaquorum.spark.gaps import GapReason
from metaquorum.spark.loader.load_job import load
from tests.metaquorum.spark.conftest import CONNECTOR_SPARK, connector_jars
from tests.nodes import KAFKA, PATIENCE_S, KafkaNode, Node, skip_without, wait_until

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from metaquorum.spark.source import DefaultSource

pytestmark = pytest.mark.conformance

HERE = Path(__file__).resolve().parent
PREFIX = "equal-"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
UNCOMMITTED, COMMITTED = "read_uncommitted", "read_committed"
READS = [
    (CODECS, UNCOMMITTED, set()),
    (("compacted", "append-time"), UNCOMMITTED, {GapReason.COMPACTED}),
    (("transactions",), UNCOMMITTED, {GapReason.CONTROL}),
    (("transactions", "zstd"), COMMITTED, {GapReason.CONTROL, GapReason.ABORTED}),
    (("open",), COMMITTED, {GapReason.CONTROL, GapReason.ABORTED}),
]
COLUMNS = ("topic", "partition", "offset", "key", "value", "micros", "timestampType", "headers")
Row = tuple[object, ...]


@pytest.fixture(scope="module", params=[Node, KafkaNode])
def written(
    request: pytest.FixtureRequest,
    java: None,
    shared_spark: object,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """Return the bootstrap address of a node with the topics, after compaction."""
    if not connector_jars():
        if not version("pyspark").startswith(CONNECTOR_SPARK):
            pytest.skip(f"there is no connector for Spark {version('pyspark')}")
        skip_without("Spark's Kafka connector is not installed")
    settings = {"log.cleaner.backoff.ms": 100, "log.cleaner.min.compaction.lag.ms": 0}
    node = request.param(tmp_path_factory.mktemp("equal") / "node", settings)
    node.start()
    try:
        writer = [KAFKA / "tool", HERE / "WriteTopics.java", node.bootstrap, PREFIX]
        done = subprocess.run(writer, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr[-2000:]
        wait_until(lambda: is_compacted(node), what="the cleaner")
        yield node.bootstrap
    finally:
        node.stop()


def is_compacted(node: Node | KafkaNode) -> bool:
    """Wait until the cleaner has cleaned all but the last segments, and nothing changes."""
    checkpoint = node.data_dir / "cleaner-offset-checkpoint"
    if not checkpoint.exists():
        return False
    rows = [line.split(" ") for line in checkpoint.read_text().splitlines()[2:]]
    cleaned = {(topic, int(partition)): int(offset) for topic, partition, offset in rows}
    ends = active_segments(node)
    return all(cleaned.get((f"{PREFIX}compacted", n), -1) >= ends[n] for n in (0, 1))


def active_segments(node: Node | KafkaNode) -> list[int]:
    """Return the base offset of the last segment of each partition of the compacted topic."""
    return [
        max(
            int(path.stem)
            for path in (node.data_dir / f"{PREFIX}compacted-{partition}").glob("*.log")
        )
        for partition in (0, 1)
    ]


def rows_of(frame: DataFrame) -> list[Row]:
    columns = [f.unix_micros("timestamp").alias("micros") if c == "micros" else c for c in COLUMNS]
    found = frame.select(*columns).collect()
    return sorted(
        (
            *row[:3],
            *(None if one is None else bytes(one) for one in row[3:5]),
            *row[5:7],
            None if row[7] is None else tuple((each["key"], each["value"]) for each in row[7]),
        )
        for row in found
    )


def read(
    spark: SparkSession, form: str, bootstrap: str, topics: list[str], isolation: str
) -> list[Row]:
    return rows_of(
        spark.read.format(form)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", ",".join(topics))
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", isolation)
        .option("minPartitions", "5")
        .load()
    )


def loaded(files: list[str]) -> list[Row]:
    columns = [c for c in COLUMNS if c not in ("micros", "topic", "partition")]
    found = []
    for path in files:
        parts = dict(part.split("=", 1) for part in Path(path).parts if "=" in part)
        table = ds.dataset(path, partitioning=None).to_table(columns=[*columns, "timestamp"])
        for row in table.to_pylist():
            headers = row["headers"]
            found.append(
                (
                    parts["topic"],
                    int(parts["partition"]),
                    row["offset"],
                    row["key"],
                    row["value"],
                    round(row["timestamp"].timestamp() * 1_000_000),
                    row["timestampType"],
                    None if headers is None else tuple((h["key"], h["value"]) for h in headers),
                )
            )
    return sorted(found)


@pytest.mark.parametrize(("topics", "isolation", "reasons"), READS)
def test_the_same_rows(
    spark: SparkSession,
    written: str,
    tmp_path: Path,
    topics: tuple[str, ...],
    isolation: str,
    reasons: set[GapReason],
) -> None:
    spark.dataSource.register(DefaultSource)
    names = [PREFIX + topic for topic in topics]
    wanted = read(spark, "kafka", written, names, isolation)
    assert len(wanted) > 100
    assert read(spark, "metaquorum", written, names, isolation) == wanted
    report = load(
        names,
        str(tmp_path / "table"),
        bootstrap=written,
        include_headers=True,
        read_committed=isolation == COMMITTED,
        parallel=2,
    )
    assert loaded([str(path) for path in (tmp_path / "table").rglob("*.parquet")]) == wanted
    missing: dict[GapReason, int] = {}
    for each in report.rows:
        for reason, count in each.result.report.missing.items():
            missing[reason] = missing.get(reason, 0) + count
    assert set(missing) == reasons
    assert len(wanted) + sum(missing.values()) == sum(each.offsets for each in report.rows)


def value(number: int) -> bytes | None:
    """Return the value that `WriteTopics.record` gives to the record with this number."""
    if number % 13 == 0:
        return None
    return b"" if number % 17 == 0 else b"value %d" % number + b" " * (number % 300)


def committed() -> Iterator[int]:
    """Yield the numbers of the records of `WriteTopics.transactions` that read_committed reads."""
    for turn in range(12):
        for number in range(40):
            if (turn + number % 2) % 3:
                yield 1000 * turn + number
            if number % 10 == 0:
                yield 1000 * turn + 500 + number


@pytest.mark.parametrize("topic", ["transactions", "open"])
@pytest.mark.parametrize("form", ["kafka", "metaquorum"])
def test_each_committed_record_is_read_once(
    spark: SparkSession, written: str, form: str, topic: str
) -> None:
    spark.dataSource.register(DefaultSource)
    rows = read(spark, form, written, [PREFIX + topic], COMMITTED)
    wanted = Counter((number % 2, value(number)) for number in committed())
    found = Counter((row[1], row[4]) for row in rows)
    assert found == wanted


def test_what_is_read_ends_where_an_open_transaction_begins(written: str) -> None:
    with connect(written) as cluster:
        admin = BlockingAdmin(cluster)
        where = TopicPartition(f"{PREFIX}open", 0)
        stable = admin.list_offsets({where: -1}, read_committed=True)[where]
        latest = admin.list_offsets({where: -1})[where]
    assert stable.offset < latest.offset  # type: ignore[union-attr]
