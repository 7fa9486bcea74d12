"""Starting and ending offsets of a load in each partition, after the loads before it. No I/O.

The next load of a partition begins where its last load ended. `--from` applies to partitions that
are not in the table yet; for other partitions it must not contradict the table:

    --from earliest, or a time     the load continues; a time that leaves a gap is refused
    --from OFFSET                  must be the first offset in the table (the same command again) or
                                   its end; any other would leave a gap or an overlap
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from metaquorum.client.cluster import TopicPartition
from metaquorum.spark.loader.errors import RefusedError
from metaquorum.spark.loader.table.manifest import Loaded
from metaquorum.wire.primitives.frozen import frozen


@frozen
class AtOffset:
    """The same offset in each partition."""

    offset: int


@frozen
class AtTime:
    """The first record at or after a time, in milliseconds since 1970."""

    timestamp_ms: int


@frozen
class Earliest:
    """The log start offset."""


@frozen
class Latest:
    """The end of the log: the high watermark, or the last stable offset."""


Starting: TypeAlias = Earliest | AtOffset | AtTime
Ending: TypeAlias = Latest | AtOffset | AtTime


def next_start(where: TopicPartition, loaded: Loaded, starting: Starting, found: int) -> int:
    """Return the first offset of the next load of a loaded partition: the end of the last load.

    `found` is the offset of `starting` in this partition now; -1: none. Raises RefusedError if
    `starting` would leave a gap or an overlap.
    """
    if isinstance(starting, AtOffset) and found not in (loaded.start, loaded.end):
        kind = "a gap" if found > loaded.end else "an overlap"
        raise RefusedError(
            f"{where} is loaded from offset {loaded.start} to {loaded.end - 1}; to begin at "
            f"{found} would leave {kind}. Leave --from out to continue at {loaded.end}, or load "
            "into another folder"
        )
    if isinstance(starting, AtTime) and found > loaded.end:
        raise RefusedError(
            f"{where} is loaded up to offset {loaded.end - 1}, and the first record at that time "
            f"has offset {found}: {found - loaded.end} offsets between them would be left out. "
            f"Leave --from out to continue at {loaded.end}, or load into another folder"
        )
    return loaded.end


def check_log_end(where: TopicPartition, loaded: Loaded, log_end: int) -> None:
    """Raise RefusedError if the log ends before the offsets loaded from it."""
    if log_end < loaded.end:
        raise RefusedError(
            f"{where} is loaded up to offset {loaded.end - 1}, but its log ends at {log_end}: it "
            "was truncated, or is another log, and new records would be missed. Load into another "
            "folder (`mq-admin ledger` lists the truncations of a metaquorum cluster)"
        )


def non_empty(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the first and the end offset of each partition that has records to load."""
    return {where: (start, ends[where]) for where, start in starts.items() if start < ends[where]}
