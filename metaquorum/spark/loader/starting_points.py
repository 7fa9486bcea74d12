"""Where a load begins and ends in each partition, given what is loaded already. No I/O.

A partition of the table begins where its last load ended. What the user says (`--from`) holds for
partitions that are not in the table yet; for others it must not contradict:

    --from earliest, or a time     the load goes on; a time that leaves a gap is refused
    --from OFFSET                  the offset at which the table begins (the same command again), or
                                   at which it ends; any other would leave a gap or an overlap
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from metaquorum.client.cluster import TopicPartition
from metaquorum.spark.loader.errors import RefusedError
from metaquorum.spark.loader.table.manifest import Loaded
from wire.primitives.frozen import frozen


@frozen
class AtOffset:
    """The same offset in each partition."""

    offset: int


@frozen
class AtTime:
    """The first record at or after it. Milliseconds since 1970."""

    timestamp_ms: int


@frozen
class Earliest:
    """Where the log begins."""


@frozen
class Latest:
    """Where the log ends: the high watermark, or the last stable offset."""


Starting: TypeAlias = Earliest | AtOffset | AtTime
Ending: TypeAlias = Latest | AtOffset | AtTime


def next_start(where: TopicPartition, loaded: Loaded, starting: Starting, found: int) -> int:
    """Where the next load of a partition of the table begins: at its end. RefusedError.

    `found` is the offset that `starting` means in this partition now; -1: none.
    """
    if isinstance(starting, AtOffset) and found not in (loaded.start, loaded.end):
        kind = "a gap" if found > loaded.end else "an overlap"
        raise RefusedError(
            f"{where} is loaded from offset {loaded.start} to {loaded.end - 1}; to begin at "
            f"{found} would make {kind}. Leave --from out to go on at {loaded.end}, or load into "
            "another folder"
        )
    if isinstance(starting, AtTime) and found > loaded.end:
        raise RefusedError(
            f"{where} is loaded up to offset {loaded.end - 1}, and the first record at that time "
            f"has offset {found}: {found - loaded.end} offsets between them would be left out. "
            f"Leave --from out to go on at {loaded.end}, or load into another folder"
        )
    return loaded.end


def check_log_end(where: TopicPartition, loaded: Loaded, log_end: int) -> None:
    """RefusedError: the log is shorter than what was loaded of it."""
    if log_end < loaded.end:
        raise RefusedError(
            f"{where} is loaded up to offset {loaded.end - 1}, and its log ends at {log_end}: it "
            "was cut, or is another one, and records that come now would be missed. Load into "
            "another folder (`mq-admin ledger` says what a cluster of metaquorum has lost)"
        )


def non_empty(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[int, int]]:
    """What there is to load, by partition."""
    return {where: (start, ends[where]) for where, start in starts.items() if start < ends[where]}
