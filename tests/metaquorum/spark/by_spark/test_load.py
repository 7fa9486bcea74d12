"""Loads by Spark's executors, from a node."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from metaquorum.client.cluster import TopicPartition
from metaquorum.client.socket_transport import BlockingAdmin, connect
from metaquorum.spark.gaps import GapReason
from metaquorum.spark.loader.coordinator import Events
from metaquorum.spark.loader.errors import RangesFailedError
from metaquorum.spark.loader.tasks.task_spec import RangeTask
from metaquorum.spark.offset_ranges import OffsetRange
from tests.cli.admin.test_security import PASSWORD, Guarded
from tests.metaquorum.spark.conftest import SharedSpark, text_of
from tests.metaquorum.spark.loader.test_load import (
    COUNT,
    PARTITIONS,
    assert_whole,
    guarded,
    kill_descendants,
    load,
    own_topic,
    record,
    security_of,
)
from tests.metaquorum.spark.topics import filled_topic
from tests.nodes import PATIENCE_S, Peer, elsewhere, wait_until

pytest.importorskip("pyspark", reason="pyspark is not installed")

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from metaquorum.spark.loader.spark_runner import lanes

__all__ = ["guarded", "own_topic"]

pytestmark = pytest.mark.conformance


def test_lanes_have_about_the_same_size() -> None:
    tasks = [
        RangeTask(index, OffsetRange("t", 0, index, index + 1, bytes_estimate=size))
        for index, size in enumerate([7, 1, 5, 3, 8, 2])
    ]
    assert [len(lane) for lane in lanes(tasks, None)] == [1] * 6
    assert [len(lane) for lane in lanes(tasks, 9)] == [1] * 6
    two = lanes(tasks, 2)
    assert sorted(task.index for lane in two for task in lane) == list(range(6))
    sizes = [sum(task.range.bytes_estimate for task in lane) for lane in two]
    assert max(sizes) - min(sizes) <= 2


def test_spark_loads_the_same_files(
    shared_spark: SharedSpark, node: Peer, own_topic: str, tmp_path: Path
) -> None:
    load(node.bootstrap, own_topic, tmp_path / "processes")
    report = load(node.bootstrap, own_topic, tmp_path / "spark", spark=shared_spark.session)
    assert report.records == COUNT
    assert_whole(tmp_path / "spark")

    def files(output: Path) -> Sequence[str]:
        return sorted(str(path.relative_to(output)) for path in output.rglob("*.parquet"))

    assert files(tmp_path / "spark") == files(tmp_path / "processes")
    frame = shared_spark.session.read.parquet(str(tmp_path / "spark"))
    assert frame.count() == COUNT
    assert frame.where("partition = 1").count() == COUNT // 2


class KillsPython(Events):
    """Kills the Python processes of Spark when the first range has a result."""

    def __init__(self) -> None:
        self.killed: list[int] = []

    def on_range(self, index: int, what: object) -> None:
        if not self.killed:
            self.killed = kill_descendants(os.getpid(), b"pyspark.daemon")


def wait_recovered(session: SparkSession, bootstrap: str, topic: str) -> None:
    """Wait until queries work again: one fails for each idle Python process that was killed."""

    def works() -> bool:
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
        try:
            frame = session.read.format("metaquorum").options(**options).load()
            return frame.select("offset").distinct().count() == COUNT // PARTITIONS
        except (Py4JError, PySparkException):
            return False

    wait_until(lambda: works() and works(), what="a query after the processes were killed")


def test_python_processes_of_spark_that_are_killed_are_replaced(
    shared_spark: SharedSpark, node: Peer, own_topic: str, tmp_path: Path
) -> None:
    events = KillsPython()
    options = {"spark": shared_spark.session, "events": events, "max_records_per_range": 20}
    report = load(node.bootstrap, own_topic, tmp_path / "out", **options)
    assert events.killed
    assert report.records == COUNT
    assert_whole(tmp_path / "out")
    wait_recovered(shared_spark.session, node.bootstrap, own_topic)


@pytest.mark.skipif(bool(elsewhere()), reason="another cluster has other users")
def test_spark_gets_the_password_and_writes_it_nowhere(
    shared_spark: SharedSpark, guarded: Guarded, tmp_path: Path
) -> None:
    name = filled_topic(guarded.plain, map(record, range(COUNT)), PARTITIONS)
    options = {"spark": shared_spark.session, "security": security_of(guarded)}
    load(guarded.node.bootstrap, name, tmp_path / "out", **options)
    assert_whole(tmp_path / "out")
    logged = shared_spark.logged()
    assert "fetch ranges and write Parquet" in logged
    assert PASSWORD not in logged
    assert PASSWORD not in text_of(tmp_path)


def test_a_range_that_spark_cannot_read_is_a_sentence(
    shared_spark: SharedSpark, node: Peer, tmp_path: Path
) -> None:
    """The records are deleted between the plan and the task."""
    name = filled_topic(node.bootstrap, (record(2 * n) for n in range(100)))

    class Deletes(Events):
        def on_plan(self, plan: object, done: int) -> None:
            with connect(node.bootstrap, timeout_s=PATIENCE_S) as cluster:
                BlockingAdmin(cluster).delete_records({TopicPartition(name, 0): 50})

    options = {"spark": shared_spark.session, "events": Deletes()}
    with pytest.raises(RangesFailedError, match=r"offsets 0 to 49 .* are deleted"):
        load(node.bootstrap, name, tmp_path / "out", **options)
    report = load(node.bootstrap, name, tmp_path / "out", fail_on_data_loss=False)
    assert report.missing == {GapReason.DELETED: 50}
