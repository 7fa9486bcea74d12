"""PySpark data source (Python Data Source API): `spark.read.format("metaquorum")`.

    spark.read.format("metaquorum").option("kafka.bootstrap.servers", "host:9092")
        .option("subscribe", "topic").load()

Spark finds it by the package `pyspark_metaquorum` (`metaquorum.spark.discovery`), or after
`spark.dataSource.register(DefaultSource)`. The driver makes a new plan for each action, so that
"latest" is that of the action. Each range of the plan is a Spark partition, and a repeated task
reads the same records. Rows are passed to Spark as Arrow batches.

The options may hold secrets, which Spark pickles for its Python workers; no name, plan or log has
them. Deliberately absent: streaming reads (to be added in `DefaultSource.streamReader`) and writes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final, NoReturn

import pyarrow as pa
import pyspark

FIRST_SPARK: Final = (4, 0)  # with the Python Data Source API
AFTER_LAST_SPARK: Final = (4, 4)  # as in pyproject.toml
_found = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
if not FIRST_SPARK <= _found < AFTER_LAST_SPARK:
    raise ImportError(
        f"the data source metaquorum needs PySpark 4.0 to 4.3, but {pyspark.__version__} is "
        "installed; mq-load --local works without Spark"
    )

from pyspark.sql.datasource import (  # noqa: E402 - older releases lack it, and say less
    DataSource,
    DataSourceReader,
    InputPartition,
)
from pyspark.sql.types import (  # noqa: E402
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from metaquorum.spark.cluster_access import open_cluster  # noqa: E402
from metaquorum.spark.gaps import DATA_LOSS  # noqa: E402
from metaquorum.spark.offset_ranges import OffsetRange  # noqa: E402
from metaquorum.spark.options import COLUMNS, HEADERS, ReadOptions  # noqa: E402
from metaquorum.spark.planning import make_plan  # noqa: E402
from metaquorum.spark.range_reader import RangeReader  # noqa: E402

log = logging.getLogger(__name__)

NAME: Final = "metaquorum"
# As in the official connector (`KafkaRecordToRowConverter.kafkaSchema`), all nullable. Not as DDL,
# in which TIMESTAMP depends on a setting of the session.
_TYPES: Final[Mapping[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}


class UnsupportedError(Exception):
    """Spark asks for a feature that this data source does not have."""


class DefaultSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """Return the schema of the data source. Raises OptionError if an option is invalid."""
        return _schema(self._options())

    def reader(self, schema: StructType) -> RangesReader:
        options = self._options()
        if _names_and_types(schema) != _names_and_types(_schema(options)):
            raise UnsupportedError(
                f"the schema of the data source {NAME} is fixed: leave out .schema(), and choose "
                "columns by the options columns and includeHeaders"
            )
        return RangesReader(options)

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802 - Spark's name
        raise UnsupportedError(
            f"the data source {NAME} does not support streaming reads: use spark.read, or the "
            "format kafka for spark.readStream"
        )

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        self._refuse_to_write()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802
        self._refuse_to_write()

    def _refuse_to_write(self) -> NoReturn:
        raise UnsupportedError(
            f"the data source {NAME} does not support writing: use the format kafka"
        )

    def _options(self) -> ReadOptions:
        return ReadOptions.parse(self.options)


class RangesReader(DataSourceReader):
    """Reader of the ranges of one plan; Spark pickles it for each task."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Make a plan and return its ranges. Blocking: it queries the cluster."""
        with open_cluster(self._options.fetch.connecting) as cluster:
            plan = make_plan(cluster, self._options)
        return [RangePartition(each, plan.topics[each.topic].is_compacted) for each in plan.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the Arrow batches of the partition.

        Yields none for None, which Spark passes if `partitions` returned an empty list.
        """
        if not isinstance(partition, RangePartition):
            return
        fetch = self._options.fetch
        with open_cluster(fetch.connecting) as cluster:
            reader = RangeReader(
                cluster, partition.range, fetch, is_compacted=partition.is_compacted
            )
            yield from reader
        if reader.report is not None:
            for reason in sorted(DATA_LOSS & reader.report.missing.keys(), key=str):
                count = reader.report.missing[reason]
                log.warning(
                    "%s: %d offsets are %s; data loss is allowed: the rest is read",
                    partition.range.name,
                    count,
                    reason.value,
                )


class RangePartition(InputPartition):
    def __init__(self, range_: OffsetRange, is_compacted: bool | None) -> None:
        super().__init__(range_.name)
        self.range = range_
        self.is_compacted = is_compacted


def _schema(options: ReadOptions) -> StructType:
    """Return the selected columns, in the order of COLUMNS."""
    fetch = options.fetch
    columns = (*COLUMNS, HEADERS) if fetch.include_headers else COLUMNS
    return StructType(
        [
            StructField(name, _TYPES[name])
            for name in columns
            if fetch.columns is None or name in fetch.columns
        ]
    )


def _names_and_types(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
