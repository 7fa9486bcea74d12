"""Records read by Spark through the data source."""

from collections.abc import Mapping
from typing import Any

import pytest

from metaquorum.wire.records.records import Codec
from tests.metaquorum.spark.conftest import SharedSpark
from tests.metaquorum.spark.topics import filled_topic
from tests.nodes import Peer

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import TimestampType

from tests.metaquorum.spark.test_source import (
    PASSWORD,
    Secured,
    record,
    row,
    sasl_options,
    secured,
)

__all__ = ["secured"]

pytestmark = pytest.mark.conformance


def load(spark: SparkSession, bootstrap: str, **options: object) -> DataFrame:
    texts = {name: str(value) for name, value in options.items()}
    return (
        spark.read.format("metaquorum")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(**texts)
        .load()
    )


def sorted_rows(frame: DataFrame) -> list[dict[str, Any]]:
    def values(found: Row) -> dict[str, Any]:
        fields: dict[str, Any] = found.asDict(recursive=True)
        return {
            name: bytes(value) if isinstance(value, bytearray) else value
            for name, value in fields.items()
        }

    return sorted(map(values, frame.collect()), key=lambda one: (one["partition"], one["offset"]))


def test_spark_finds_the_source_and_reads_every_row(spark: SparkSession, either: Peer) -> None:
    records = [record(number, number % 2) for number in range(1000)]
    topic = filled_topic(either.bootstrap, records, 2, Codec.LZ4)
    frame = load(spark, either.bootstrap, subscribe=topic, includeHeaders="true", minPartitions=4)
    assert sorted_rows(frame) == [
        row(number, topic, partition, number // 2)
        for partition in (0, 1)
        for number in range(partition, 1000, 2)
    ]
    assert frame.filter("offset < 10").count() == 20
    assert (
        load(spark, either.bootstrap, subscribe=topic, columns="offset").distinct().count() == 500
    )
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")  # type of TIMESTAMP in DDL
    try:
        timestamps = load(spark, either.bootstrap, subscribe=topic, columns="timestamp")
        assert timestamps.schema["timestamp"].dataType == TimestampType()
        assert len(timestamps.collect()) == 1000
    finally:
        spark.conf.unset("spark.sql.timestampType")
    empty = load(spark, either.bootstrap, subscribePattern="no such topic there is")
    assert empty.count() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets can't be latest in a batch read"),
        ({"columns": "offsets"}, "option columns names 'offsets'; the columns are key, value"),
        ({"kafka.group.id": "g"}, "a load is in no consumer group"),
        ({"subscribe": "nowhere"}, "there is no topic nowhere"),
    ],
)
def test_what_is_wrong_is_said_by_spark(
    spark: SparkSession, node: Peer, options: Mapping[str, str], words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        load(spark, node.bootstrap, **{"subscribe": "t", **options}).count()


def test_what_this_source_does_not_do_is_said(spark: SparkSession, node: Peer) -> None:
    options = {"kafka.bootstrap.servers": node.bootstrap, "subscribe": "t"}
    stream = spark.readStream.format("metaquorum").options(**options).load()
    query = stream.writeStream.format("noop").start()
    with pytest.raises(PySparkException, match="does not support streaming reads"):
        query.awaitTermination()
    written = spark.range(1).write.format("metaquorum").mode("append")
    with pytest.raises(PySparkException, match="does not support writing"):
        written.save()
    other = spark.read.format("metaquorum").schema("value string").options(**options).load()
    with pytest.raises(PySparkException, match="the schema of the data source metaquorum is fixed"):
        other.count()


def test_no_secret_is_in_what_spark_logs(shared_spark: SharedSpark, secured: Secured) -> None:
    topic = filled_topic(secured.node.bootstrap, map(record, range(10)))
    options = {"subscribe": topic, **sasl_options(secured, "SCRAM-SHA-512")}
    frame = load(shared_spark.session, secured.sasl, **options)
    frame.createOrReplaceTempView("secured")
    assert shared_spark.session.sql("SELECT count(value) FROM secured").collect()
    plan = str(frame._jdf.queryExecution().toString())
    with pytest.raises(PySparkException, match="there is no topic nowhere") as caught:
        load(shared_spark.session, secured.sasl, **options | {"subscribe": "nowhere"}).count()
    logged = shared_spark.logged()
    assert "SparkListenerSQLExecutionStart" in logged
    assert "metaquorum" in plan
    for text in (plan, str(caught.value), logged):
        assert PASSWORD not in text
