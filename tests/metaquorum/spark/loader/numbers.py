"""A log without a cluster, whose records hold their own offsets, and a driver that loads it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from metaquorum.spark.gaps import Gap, GapReason, RangeReport
from metaquorum.spark.loader.coordinator import (
    Events,
    LoadOutcome,
    LoadRequest,
    new_driver_id,
    run_load,
)
from metaquorum.spark.loader.runner import Failures, OnEvent
from metaquorum.spark.loader.storage.interface import Storage
from metaquorum.spark.loader.storage.local_storage import LocalStorage
from metaquorum.spark.loader.table.committed_table import Table
from metaquorum.spark.loader.table.layout import META_FOLDER
from metaquorum.spark.loader.table.load_plan import LoadPlan, TableSettings
from metaquorum.spark.loader.table.manifest import Manifest, check_cluster, check_topic
from metaquorum.spark.loader.tasks.range_task import OnProgress, TaskProgress, load_range
from metaquorum.spark.loader.tasks.task_spec import RangeTask, TaskContext
from metaquorum.spark.offset_ranges import OffsetRange, ReadPlan, TopicFacts
from metaquorum.spark.options import Connecting, FetchOptions

TOPIC = "numbers"
TOPIC_ID = bytes(range(16))
CLUSTER = "a-cluster"
BATCH = 3
SCHEMA = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
# Positive multiples of 7 are offsets without a record.
MISSING = 7

NOW_MS = 1_700_000_000_000


class Log:
    """Partitions of one topic with the given number of offsets each. A `Planner`."""

    def __init__(self, ends: Mapping[int, int], range_offsets: int = 10) -> None:
        self.ends = dict(ends)
        self.topic_id = TOPIC_ID
        self.cluster_id = CLUSTER
        self._range_offsets = range_offsets

    def make(self, previous: Manifest | None) -> ReadPlan | None:
        positions = {} if previous is None else previous.positions
        ranges = []
        for partition, end in sorted(self.ends.items()):
            known = positions.get((TOPIC, partition))
            start = 0 if known is None else known.end
            while start < end:
                behind = min(end, start + self._range_offsets)
                ranges.append(OffsetRange(TOPIC, partition, start, behind, self.topic_id))
                start = behind
        if not ranges:
            return None
        facts = TopicFacts(self.topic_id, is_compacted=True)
        return ReadPlan(self.cluster_id, False, tuple(ranges), {TOPIC: facts}, NOW_MS)

    def check(self, plan: LoadPlan) -> None:
        check_cluster(plan.read_plan.cluster_id, self.cluster_id, "the plan")
        for name, facts in plan.read_plan.topics.items():
            check_topic(name, facts.topic_id, self.topic_id)


def offsets_of(start: int, end: int) -> list[int]:
    return [offset for offset in range(start, end) if offset % MISSING or not offset]


class NumbersReader:
    """A replacement of `RangeReader`."""

    def __init__(self, range_: OffsetRange, on_progress: OnProgress) -> None:
        self.report: RangeReport | None = None
        self._range = range_
        self._on_progress = on_progress

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        range_ = self._range
        offsets = offsets_of(range_.start, range_.end)
        for at in range(0, len(offsets), BATCH):
            some = offsets[at : at + BATCH]
            values = [f"{range_.partition}/{offset}".encode() for offset in some]
            self._on_progress(TaskProgress(some[-1] + 1, at + len(some), 0, 0))
            yield pa.record_batch([pa.array(values), pa.array(some)], schema=SCHEMA)
        gaps = [
            Gap(offset, offset + 1, GapReason.COMPACTED)
            for offset in range(range_.start, range_.end)
            if offset not in offsets
        ]
        self.report = RangeReport(
            records=len(offsets),
            bytes=sum(len(f"{range_.partition}/{offset}") for offset in offsets),
            first_offset=offsets[0] if offsets else None,
            last_offset=offsets[-1] if offsets else None,
            min_timestamp_ms=NOW_MS if offsets else None,
            max_timestamp_ms=NOW_MS if offsets else None,
            missing={GapReason.COMPACTED: len(gaps)} if gaps else {},
            gaps=gaps,
            gap_count=len(gaps),
            fetches=1,
            fetched_bytes=100,
            throttled_ms=0,
        )


def open_numbers(context: TaskContext, task: RangeTask, on_progress: OnProgress) -> NumbersReader:
    return NumbersReader(task.range, on_progress)


class InThisThread:
    """A `Runner` for which each attempt is a call; `storage` may be one that fails."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def run(self, context: TaskContext, tasks: Sequence[RangeTask], on_event: OnEvent) -> Failures:
        for task in tasks:
            index = task.index
            progress = [TaskProgress(0, 0, 0, 0)]
            result = load_range(self._storage, context, task, open_numbers, progress.append)
            on_event(index, progress[-1])
            on_event(index, result)
        return {}


def request(
    folder: Path | str, words: str = "all", *, discard_unfinished: bool = False
) -> LoadRequest:
    return LoadRequest(
        output=str(folder),
        request={"topics": words},
        settings=TableSettings(columns=("value", "offset")),
        fetch=FetchOptions(Connecting("nowhere:1")),
        discard_unfinished=discard_unfinished,
    )


def drive(
    storage: Storage, log: Log, asked: LoadRequest, events: Events | None = None
) -> LoadOutcome:
    """Run one load by a new driver, without a lock."""
    table = Table(storage)
    table.open_or_make()
    return run_load(
        table, asked, log, InThisThread(storage), driver_id=new_driver_id(), events=events
    )


def load(folder: Path, log: Log) -> LoadOutcome:
    return drive(LocalStorage(str(folder)), log, request(folder))


# Files visible to readers


def seen_by_readers_of_the_folder(folder: Path) -> dict[int, list[int]]:
    """Return the offsets in all files `*.parquet` by partition, in the order of the files."""
    found: dict[int, list[int]] = {}
    for path in sorted(folder.rglob("*.parquet")):
        partition = int(path.parent.name.removeprefix("partition="))
        assert path.parent.parent.name == f"topic={TOPIC}"
        rows = pq.ParquetFile(path).read()
        offsets = rows.column("offset").to_pylist()
        assert rows.column("value").to_pylist() == [f"{partition}/{o}".encode() for o in offsets]
        found.setdefault(partition, []).extend(offsets)
    return found


def seen_through_manifests(folder: Path) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for _, file, place in Table(LocalStorage(str(folder))).committed():
        partition = int(file.path.split("/")[1].removeprefix("partition="))
        rows = pq.ParquetFile(folder / place).read()
        assert rows.num_rows == file.rows
        assert (folder / place).stat().st_size == file.bytes
        found.setdefault(partition, []).extend(rows.column("offset").to_pylist())
    return found


def expected(log: Log) -> dict[int, list[int]]:
    return {partition: offsets_of(0, end) for partition, end in log.ends.items()}


def assert_nothing_twice(found: Mapping[int, Sequence[int]]) -> None:
    for offsets in found.values():
        assert max(Counter(offsets).values()) == 1
        assert list(offsets) == sorted(offsets)


def leftovers(folder: Path) -> list[str]:
    """Return the files other than committed files and the loader's own."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file()
        and path.suffix != ".parquet"
        and path.relative_to(folder).parts[0] != META_FOLDER
    ]
