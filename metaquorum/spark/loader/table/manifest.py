"""Manifests: one commit record for each load, numbered from 1 without gaps.

A manifest names the files that its load added, and the offsets [start, end) loaded so far for each
partition of the table. The next load of a partition must begin at `end`. All manifests together
are the table; the newest alone determines where the next load begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from metaquorum.spark.gaps import GapReason
from metaquorum.spark.loader.errors import RefusedError
from metaquorum.spark.loader.table.json_fields import (
    check_format,
    check_names,
    decode,
    encode,
    mapping,
    random_id,
    sequence,
    text,
    text_or_none,
    whole,
    whole_or_none,
)
from metaquorum.spark.loader.table.layout import (
    data_path,
    manifest_path,
    rejected_path,
    report_path,
    staged_index,
    staging_folder,
)
from metaquorum.spark.loader.table.load_plan import LoadPlan, TableSettings
from metaquorum.spark.loader.table.range_result import (
    RangeResult,
    StagedFile,
    check_counts,
    check_missing,
    check_rows,
    checksum,
    reason,
)
from metaquorum.spark.offset_ranges import OffsetRange
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.primitives.types import ZERO_UUID

KIND: Final = "load manifest"
FORMAT: Final = 1
MAX_MANIFEST_BYTES: Final = 256 << 20
_FIELDS: Final = (
    *("kind", "format", "version", "plan_id", "driver_id", "cluster_id", "topics", "loaded"),
    *("ranges", "settings", "report", "began_ms", "committed_ms"),
)
_RANGE_FIELDS: Final = (
    *("topic", "partition", "start", "end", "records", "first_offset", "last_offset"),
    *("missing", "file", "rejected"),
)


@frozen
class CommittedFile:
    """A committed file; `staged` is its path until it is published as `path`."""

    path: str
    staged: str
    bytes: int
    rows: int
    crc32c: int

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "staged": self.staged,
            "bytes": self.bytes,
            "rows": self.rows,
            "crc32c": f"{self.crc32c:08x}",
        }


@frozen
class CommittedRange:
    """A loaded range, `start` to `end` - 1; `missing` counts offsets without a record."""

    topic: str
    partition: int
    start: int
    end: int
    records: int
    first_offset: int | None
    last_offset: int | None
    missing: Mapping[GapReason, int]
    file: CommittedFile | None
    rejected: CommittedFile | None

    @property
    def files(self) -> list[CommittedFile]:
        return [file for file in (self.file, self.rejected) if file is not None]


@frozen
class Loaded:
    """Loaded offsets of one partition of the table: `start` to `end` - 1."""

    topic: str
    partition: int
    start: int
    end: int


@frozen
class Manifest:
    version: int
    plan_id: str
    driver_id: str  # the driver that committed it
    cluster_id: str | None
    topic_ids: Mapping[str, bytes]
    loaded: Sequence[Loaded]  # the whole table, after this load
    ranges: Sequence[CommittedRange]  # this load
    settings: TableSettings
    report: str  # path of the report
    began_ms: int
    committed_ms: int

    @property
    def positions(self) -> dict[tuple[str, int], Loaded]:
        return {(each.topic, each.partition): each for each in self.loaded}

    @property
    def files(self) -> list[CommittedFile]:
        return [file for each in self.ranges for file in each.files]

    def to_bytes(self) -> bytes:
        return encode(
            {
                "kind": KIND,
                "format": FORMAT,
                "version": self.version,
                "plan_id": self.plan_id,
                "driver_id": self.driver_id,
                "cluster_id": self.cluster_id,
                "topics": {name: each.hex() for name, each in self.topic_ids.items()},
                "loaded": [
                    {
                        "topic": each.topic,
                        "partition": each.partition,
                        "start": each.start,
                        "end": each.end,
                    }
                    for each in self.loaded
                ],
                "ranges": [_range_to_json(each) for each in self.ranges],
                "settings": self.settings.to_json(),
                "report": self.report,
                "began_ms": self.began_ms,
                "committed_ms": self.committed_ms,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Return the manifest of a file's content. Raises ValueError if it is invalid."""
        found = decode(data)
        check_format(found, KIND, FORMAT)
        check_names(found, "it", *_FIELDS)
        topics = mapping(found.get("topics"), "topics")
        manifest = cls(
            version=whole(found, "version", least=1),
            plan_id=random_id(found, "plan_id"),
            driver_id=random_id(found, "driver_id"),
            cluster_id=text_or_none(found, "cluster_id"),
            topic_ids={name: _topic_id(topics, name) for name in topics},
            loaded=[_loaded(mapping(one, "loaded")) for one in sequence(found, "loaded")],
            ranges=[_range(mapping(one, "a range")) for one in sequence(found, "ranges")],
            settings=TableSettings.from_json(mapping(found.get("settings"), "settings")),
            report=safe_path(text(found, "report")),
            began_ms=whole(found, "began_ms"),
            committed_ms=whole(found, "committed_ms"),
        )
        _check_manifest(manifest)
        return manifest


def safe_path(path: str) -> str:
    """Return `path`. Raises ValueError unless it is relative and stays in the output."""
    if (
        path.startswith("/")
        or "\\" in path
        or "\0" in path
        or any(part in ("", ".", "..") for part in path.split("/"))
    ):
        raise ValueError(f"{path!r} is not a path in the output")
    return path


def _topic_id(topics: Mapping[str, Any], name: str) -> bytes:
    try:
        found = bytes.fromhex(text(topics, name))
    except ValueError:
        found = b""
    if len(found) != len(ZERO_UUID):
        raise ValueError(f"the id of topic {name!r} is not a topic id")
    return found


def _loaded(data: Mapping[str, Any]) -> Loaded:
    check_names(data, "loaded", "topic", "partition", "start", "end")
    return Loaded(
        text(data, "topic"), whole(data, "partition"), whole(data, "start"), whole(data, "end")
    )


def _range_to_json(each: CommittedRange) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "start": each.start,
        "end": each.end,
        "records": each.records,
        "first_offset": each.first_offset,
        "last_offset": each.last_offset,
        "missing": {reason.name.lower(): count for reason, count in each.missing.items()},
        "file": None if each.file is None else each.file.to_json(),
        "rejected": None if each.rejected is None else each.rejected.to_json(),
    }


def _range(data: Mapping[str, Any]) -> CommittedRange:
    check_names(data, "a range", *_RANGE_FIELDS)
    missing = mapping(data.get("missing"), "missing")
    return CommittedRange(
        text(data, "topic"),
        whole(data, "partition"),
        whole(data, "start"),
        whole(data, "end"),
        whole(data, "records"),
        whole_or_none(data, "first_offset"),
        whole_or_none(data, "last_offset"),
        {reason(name): whole(missing, name) for name in missing},
        _file(data.get("file")),
        _file(data.get("rejected")),
    )


def _file(data: Any) -> CommittedFile | None:
    if data is None:
        return None
    found = mapping(data, "file")
    check_names(found, "a file", "path", "staged", "bytes", "rows", "crc32c")
    return CommittedFile(
        safe_path(text(found, "path")),
        safe_path(text(found, "staged")),
        whole(found, "bytes"),
        whole(found, "rows"),
        checksum(found),
    )


# Rules for one manifest


def _check_manifest(manifest: Manifest) -> None:
    """Raise ValueError unless paths, counts and offsets of the manifest agree with each other."""
    if manifest.report != report_path(manifest.version, manifest.plan_id):
        raise ValueError(f"{manifest.report[:300]!r} is not the path of its report")
    positions = manifest.positions
    if len(positions) != len(manifest.loaded):
        raise ValueError("it has a partition twice")
    for each in manifest.loaded:
        OffsetRange(each.topic, each.partition, each.start, each.end)  # raises if it is invalid
        if each.topic not in manifest.topic_ids:
            raise ValueError(f"it has no id of topic {each.topic}")
    if not manifest.ranges:
        raise ValueError("it has no ranges")
    before: dict[tuple[str, int], int] = {}
    for index, one in enumerate(manifest.ranges):
        where = one.topic, one.partition
        range_ = OffsetRange(*where, one.start, one.end)
        if before.get(where, one.start) != one.start or one.end == one.start:
            raise ValueError(f"{range_.name} does not begin where the range before it ends")
        before[where] = one.end
        check_counts(range_, one.records, one.first_offset, one.last_offset)
        check_missing(range_, one.missing)
        check_rows(one.records, (one.file, one.rejected))
        _check_file(manifest, index, one.file, data_path(range_))
        _check_file(manifest, index, one.rejected, rejected_path(range_))
    for where, end in before.items():
        if where not in positions or positions[where].end != end:
            raise ValueError(f"{where[0]}-{where[1]} is not loaded up to the end of its ranges")


def _check_file(manifest: Manifest, index: int, file: CommittedFile | None, path: str) -> None:
    if file is None:
        return
    staging = staging_folder(manifest.version, manifest.plan_id)
    if not file.staged.startswith(f"{staging}/") or staged_index(file.staged) != index:
        raise ValueError(f"{file.staged[:300]!r} is not a staged file of range {index}")
    if file.path != path:
        raise ValueError(f"{file.path[:300]!r} is not the path of the range, {path}")


def check_of_plan(manifest: Manifest, plan: LoadPlan) -> None:
    """Raise ValueError unless the manifest commits the plan."""
    if manifest.plan_id != plan.plan_id:
        raise ValueError("it commits another plan than the one that is stored")
    if manifest.cluster_id != plan.read_plan.cluster_id:
        raise ValueError(
            f"its cluster id is {manifest.cluster_id}, but its plan is of cluster "
            f"{plan.read_plan.cluster_id}"
        )
    for name, facts in plan.read_plan.topics.items():
        if manifest.topic_ids.get(name) != facts.topic_id:
            raise ValueError(f"its id of topic {name} is not that of its plan")
    ranges = [(each.topic, each.partition, each.start, each.end) for each in manifest.ranges]
    planned = [(each.topic, each.partition, each.start, each.end) for each in plan.read_plan.ranges]
    if ranges != planned or manifest.settings != plan.settings:
        raise ValueError("its ranges or settings are not those of its plan")


def check_of_manifest(results: Sequence[RangeResult], manifest: Manifest) -> None:
    """Raise ValueError unless the results of a report are those that the manifest commits."""
    committed = [_facts(one, one.records) for one in manifest.ranges]
    if [_facts(one, one.report.records) for one in results] != committed:
        raise ValueError(f"its ranges are not those of {manifest_path(manifest.version)}")


def _facts(one: CommittedRange | RangeResult, records: int) -> tuple[object, ...]:
    rows = [None if file is None else file.rows for file in (one.file, one.rejected)]
    return one.topic, one.partition, one.start, one.end, records, *rows


def check_follows(previous: Manifest | None, found: Manifest) -> None:
    """Raise ValueError unless the manifest continues the table where the previous one ends."""
    before = {} if previous is None else previous.positions
    starts: dict[tuple[str, int], int] = {}
    for each in found.ranges:
        starts.setdefault((each.topic, each.partition), each.start)
    for where, one in found.positions.items():
        known = before.get(where)
        start, end = (one.start, one.start) if known is None else (known.start, known.end)
        if one.start != start or starts.get(where, one.end) != end:
            raise ValueError(
                f"it does not continue {where[0]}-{where[1]}, which was loaded up to offset {end}"
            )
    if previous is None:
        return
    if lost := sorted(before.keys() - found.positions.keys()):
        raise ValueError(f"it does not have {lost[0][0]}-{lost[0][1]}, which was loaded before")
    if None not in (previous.cluster_id, found.cluster_id) and (
        previous.cluster_id != found.cluster_id
    ):
        raise ValueError(
            f"its cluster id is {found.cluster_id}, but that of the load before is "
            f"{previous.cluster_id}"
        )
    for name, topic_id in previous.topic_ids.items():
        if ZERO_UUID not in (topic_id, other := found.topic_ids.get(name)) and topic_id != other:
            raise ValueError(f"its id of topic {name} is not that of the load before")


# Rules for consecutive manifests


def check_continues(previous: Manifest | None, plan: LoadPlan) -> None:
    """Raise RefusedError unless the plan continues the table without gap or overlap.

    A partition that is not in the table yet may begin at any offset.
    """
    if previous is not None:
        check_same_source(previous, plan)
    ends = {} if previous is None else {k: each.end for k, each in previous.positions.items()}
    for each in plan.read_plan.ranges:
        where = each.topic, each.partition
        expected = ends.get(where, each.start)
        if each.start != expected:
            kind = "a gap" if each.start > expected else "an overlap"
            raise RefusedError(
                f"{each.topic}-{each.partition} is loaded up to offset {expected}, but the load "
                f"would begin at {each.start}: {kind} of {abs(each.start - expected)} offsets; "
                "continue where the table ends, or load into another folder"
            )
        if each.end <= each.start:
            raise RefusedError(
                f"the range {each.start} to {each.end} of {each.topic}-{each.partition} is empty"
            )
        ends[where] = each.end


def check_same_source(previous: Manifest, plan: LoadPlan) -> None:
    """Raise RefusedError unless cluster, topics and columns are those of the table."""
    check_cluster(previous.cluster_id, plan.read_plan.cluster_id, f"load {previous.version}")
    check_columns(previous.settings, plan.settings)
    for name, facts in plan.read_plan.topics.items():
        check_topic(name, previous.topic_ids.get(name, ZERO_UUID), facts.topic_id)


def check_columns(known: TableSettings, found: TableSettings) -> None:
    """Raise RefusedError unless the load has the columns and value schema of the table."""
    mine, theirs = ((sorted(each.file_columns), each.value_schema) for each in (known, found))
    if mine != theirs:
        raise RefusedError(
            f"the files of the table have the columns {', '.join(known.file_columns)}, but those "
            f"of the load would have {', '.join(found.file_columns)}, or another value schema; "
            "use the same columns, or load into another folder"
        )


def check_cluster(known: str | None, found: str | None, what: str) -> None:
    if known is not None and found is not None and known != found:
        raise RefusedError(
            f"{what} is from cluster {known}, but the bootstrap addresses are of cluster {found}; "
            "use the addresses of the first cluster, or load into another folder"
        )


def check_topic(name: str, known: bytes, found: bytes) -> None:
    if ZERO_UUID not in (known, found) and known != found:
        raise RefusedError(
            f"topic {name} was deleted and created again: its id was {known.hex()} and is "
            f"{found.hex()}, and its offsets started again; load it into another folder"
        )


def next_manifest(
    previous: Manifest | None,
    plan: LoadPlan,
    results: Sequence[RangeResult],
    *,
    driver_id: str,
    report: str,
    now_ms: int,
) -> Manifest:
    """Return the manifest that commits the plan's load; `results` are in the order of ranges."""
    check_continues(previous, plan)
    assert len(results) == len(plan.read_plan.ranges)
    positions = {} if previous is None else previous.positions
    committed = []
    for range_, result in zip(plan.read_plan.ranges, results, strict=True):
        assert result.is_of(range_)
        where = range_.topic, range_.partition
        start = positions[where].start if where in positions else range_.start
        positions[where] = Loaded(range_.topic, range_.partition, start, range_.end)
        committed.append(_committed(range_, result))
    topic_ids = {} if previous is None else dict(previous.topic_ids)
    topic_ids |= {name: facts.topic_id for name, facts in plan.read_plan.topics.items()}
    return Manifest(
        version=plan.version,
        plan_id=plan.plan_id,
        driver_id=driver_id,
        cluster_id=plan.read_plan.cluster_id,
        topic_ids=topic_ids,
        loaded=[positions[where] for where in sorted(positions)],
        ranges=committed,
        settings=plan.settings,
        report=report,
        began_ms=plan.read_plan.made_at_ms,
        committed_ms=now_ms,
    )


def _committed(range_: OffsetRange, result: RangeResult) -> CommittedRange:
    return CommittedRange(
        range_.topic,
        range_.partition,
        range_.start,
        range_.end,
        result.report.records,
        result.report.first_offset,
        result.report.last_offset,
        result.report.missing,
        _published(result.file, data_path(range_)),
        _published(result.rejected, rejected_path(range_)),
    )


def _published(file: StagedFile | None, path: str) -> CommittedFile | None:
    if file is None:
        return None
    return CommittedFile(path, file.path, file.bytes, file.rows, file.crc32c)


def check_chain(manifests: Iterable[Manifest]) -> None:
    """Raise ValueError, with its number, for the first manifest that does not continue the last."""
    previous: Manifest | None = None
    for number, each in enumerate(manifests, 1):
        if each.version != number:
            raise ValueError(f"manifest {number} is missing")
        try:
            check_follows(previous, each)
        except ValueError as error:
            raise ValueError(f"manifest {number}: {error}") from None
        previous = each
