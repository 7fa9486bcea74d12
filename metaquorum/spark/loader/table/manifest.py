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
    decode,
    encode,
    mapping,
    sequence,
    text,
    text_or_none,
    whole,
    whole_or_none,
)
from metaquorum.spark.loader.table.layout import data_path, rejected_path
from metaquorum.spark.loader.table.load_plan import LoadPlan, TableSettings
from metaquorum.spark.loader.table.range_result import RangeResult, StagedFile, checksum, reason
from metaquorum.spark.offset_ranges import OffsetRange
from wire.primitives.frozen import frozen
from wire.primitives.types import ZERO_UUID

KIND: Final = "load manifest"
FORMAT: Final = 1
MAX_MANIFEST_BYTES: Final = 256 << 20


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
        topics = mapping(found.get("topics"), "topics")
        return cls(
            version=whole(found, "version", least=1),
            plan_id=text(found, "plan_id"),
            driver_id=text(found, "driver_id"),
            cluster_id=text_or_none(found, "cluster_id"),
            topic_ids={name: _topic_id(topics, name) for name in topics},
            loaded=[_loaded(mapping(one, "loaded")) for one in sequence(found, "loaded")],
            ranges=[_range(mapping(one, "a range")) for one in sequence(found, "ranges")],
            settings=TableSettings.from_json(mapping(found.get("settings"), "settings")),
            report=safe_path(text(found, "report")),
            began_ms=whole(found, "began_ms"),
            committed_ms=whole(found, "committed_ms"),
        )


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
    return CommittedFile(
        safe_path(text(found, "path")),
        safe_path(text(found, "staged")),
        whole(found, "bytes"),
        whole(found, "rows"),
        checksum(found),
    )


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
    ends: dict[tuple[str, int], int] = {}
    for number, each in enumerate(manifests, 1):
        if each.version != number:
            raise ValueError(f"manifest {number} is missing")
        for one in each.ranges:
            where = one.topic, one.partition
            if ends.get(where, one.start) != one.start:
                raise ValueError(f"manifest {number} does not continue {one.topic}-{one.partition}")
            ends[where] = one.end
