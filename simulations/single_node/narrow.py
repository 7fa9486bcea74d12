"""Narrow worlds: small worlds that draw one order of events with high probability.

Some rules protect data only in an order of events that the other worlds of a scenario rarely reach.
A narrow world has few clients and few kinds of faults, so that it is short. A separate random
stream draws which seeds are narrow, and all settings of narrow worlds: the worlds of the other
seeds do not change.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Final, NamedTuple

from metaquorum.simulations.harness.environment import Settings
from metaquorum.wire.records.records import Codec

# Share of the seeds of a scenario that has narrow worlds.
SHARE: Final = 0.2


class NarrowWorld(NamedTuple):
    about: str
    shape: Callable[[Settings, Random], None]


def _quiet(settings: Settings) -> None:
    """Leave producers and one consumer as the only clients, apart from the administrator."""
    settings.consumers, settings.sessions, settings.hostiles = 1, 0, 0
    settings.changes = settings.delete_topics = settings.retention = 0.0
    settings.big_value = settings.append_time = 0.0
    settings.several_log_dirs = False


def _power_after_recovery(settings: Settings, draw: Random) -> None:
    """Flush no records: only recovery makes them durable before the power fails."""
    _quiet(settings)
    settings.topics, settings.producers = 1, 2
    settings.flush = 0.0
    settings.idempotent = 1.0
    settings.segment_bytes = 700_000
    settings.records, settings.max_batch_records = 80, 4
    settings.max_value_bytes, settings.think_s = 300, 0.02
    settings.fault_gap_s = 0.1
    settings.faults = ["power after recovery"] * draw.randint(1, 2)


def _rot_before_cleaning(settings: Settings, draw: Random) -> None:
    """Damage values in batches of which compaction will keep only some records."""
    _quiet(settings)
    settings.topics, settings.producers = 1, 2
    settings.compacted = 1.0
    settings.keys, settings.deletions = draw.choice([10, 30]), 0.1
    settings.delete_retention_ms = 60_000
    settings.codecs = (Codec.NONE,)
    settings.segment_bytes = draw.choice([1000, 2000])
    settings.records, settings.max_batch_records = 160, 6
    settings.max_value_bytes, settings.think_s = 60, 0.02
    settings.fault_gap_s = 0.4
    settings.faults = ["rot before cleaning"] * draw.randint(1, 2)
    settings.node_configs = {
        "log.cleaner.backoff.ms": "20",
        "log.flush.scheduler.interval.ms": "50",
    }


def _unreadable_starts(settings: Settings, draw: Random) -> None:
    """Make flushed records above the recovery point on disk unreadable while the node starts."""
    _quiet(settings)
    settings.topics, settings.producers = 1, 2
    settings.flush = 1.0
    settings.segment_bytes = draw.choice([4096, 700_000])
    settings.records, settings.max_batch_records = 80, 4
    settings.max_value_bytes, settings.think_s = 300, 0.02
    settings.fault_gap_s = 0.4
    settings.faults = ["unreadable start"] * draw.randint(1, 2)
    settings.node_configs = {"log.flush.offset.checkpoint.interval.ms": "60000"}


def _rotten_indexes(settings: Settings, draw: Random) -> None:
    """Write many entries to the offset indexes of complete segments, and flip bits in each one."""
    _quiet(settings)
    settings.topics, settings.producers = 1, 2
    settings.index_interval_bytes, settings.segment_bytes = 1, 4096
    settings.records, settings.max_batch_records = 160, 2
    settings.max_value_bytes, settings.think_s = 300, 0.005
    settings.fault_gap_s = 0.4
    settings.faults = ["index rot"] * draw.randint(1, 2)


def _failing_syncs(settings: Settings, draw: Random) -> None:
    """Flush every record before it is acknowledged, and let the syncs fail."""
    _quiet(settings)
    settings.topics, settings.producers = 1, 2
    settings.flush = 1.0
    settings.segment_bytes = draw.choice([4096, 700_000])
    settings.records, settings.max_batch_records = 160, 4
    settings.max_value_bytes, settings.think_s = 300, 0.02
    settings.fault_gap_s = 0.4
    settings.faults = ["forgotten sync failure"] * draw.randint(1, 2)


def _cleaned_before_flushed(settings: Settings, draw: Random) -> None:
    """Delay the flush of complete segments until the power fails."""
    _quiet(settings)
    settings.topics, settings.max_partitions, settings.producers = 1, 1, 2
    settings.flush, settings.compacted = 0.0, 1.0
    settings.keys, settings.deletions = draw.choice([30, 100]), 0.0
    settings.delete_retention_ms = 60_000
    settings.segment_bytes = 1000
    settings.records, settings.max_batch_records = 120, 2
    settings.max_value_bytes, settings.think_s = 60, 0.02
    settings.fault_gap_s = 2.0
    settings.faults = ["power"]
    settings.node_configs = {
        "log.cleaner.backoff.ms": "20",
        "log.flush.scheduler.interval.ms": draw.choice(["400", "1000"]),
    }


def _little_room(settings: Settings, draw: Random) -> None:
    """Let idempotent producers pipeline batches while the disk has room only for small ones."""
    _quiet(settings)
    settings.topics, settings.max_partitions, settings.producers = 1, 1, 4
    settings.idempotent, settings.pipeline, settings.think_s = 1.0, 5, 0.0
    settings.begins_anew, settings.segment_bytes = 0.5, 700_000
    settings.records, settings.max_batch_records = 120, draw.choice([4, 12])
    settings.max_value_bytes = 1500
    settings.fault_gap_s = 0.1
    settings.faults = ["little room"] * 3


def _several_removals(settings: Settings, draw: Random) -> None:
    """Let retention remove several segments at once, above the recovery point on disk."""
    _quiet(settings)
    settings.topics, settings.producers = 2, 2
    settings.flush, settings.retention = 1.0, 1.0
    settings.segment_bytes = 1000
    settings.records, settings.max_batch_records = 240, 4
    settings.max_value_bytes, settings.think_s = 300, 0.005
    settings.fault_gap_s = 0.1
    settings.faults = ["power at removals"] * draw.randint(1, 3)
    settings.node_configs = {"log.flush.offset.checkpoint.interval.ms": "60000"}


def _new_folders(settings: Settings, _: Random) -> None:
    """Kill a process that has created folders of logs, in directories that are not synced soon."""
    _quiet(settings)
    settings.topics, settings.max_partitions, settings.producers = 2, 3, 3
    settings.several_log_dirs = True
    settings.flush = 1.0
    settings.segment_bytes = 700_000
    settings.records, settings.max_batch_records = 60, 2
    settings.max_value_bytes, settings.think_s = 60, 0.02
    settings.fault_gap_s = 0.02
    settings.faults = ["power after new folders"]
    settings.node_configs = {
        "log.flush.offset.checkpoint.interval.ms": "60000",
        "replica.high.watermark.checkpoint.interval.ms": "60000",
    }


NARROW: Final[Mapping[str, tuple[NarrowWorld, ...]]] = {
    "single-node-power": (NarrowWorld("power fails soon after a recovery", _power_after_recovery),),
    "failing-disk": (
        NarrowWorld("records rot before they are cleaned", _rot_before_cleaning),
        NarrowWorld("segments cannot be read while the node starts", _unreadable_starts),
        NarrowWorld("records are acknowledged while syncs fail", _failing_syncs),
        NarrowWorld("offset indexes rot", _rotten_indexes),
    ),
    "compaction": (
        NarrowWorld("power fails before complete segments are flushed", _cleaned_before_flushed),
    ),
    "disk-full": (NarrowWorld("the disk has room for small batches only", _little_room),),
    "administration": (
        NarrowWorld("power fails while several segments are removed", _several_removals),
    ),
    "log-dirs": (NarrowWorld("power fails after a kill that left new folders", _new_folders),),
}


def narrow(scenario: str, settings: Settings, draw: Random) -> str | None:
    """Draw whether the world is narrow; if so, change `settings` and return its purpose."""
    worlds = NARROW.get(scenario, ())
    if not worlds or draw.random() >= SHARE:
        return None
    chosen = draw.choice(worlds)
    chosen.shape(settings, draw)
    return chosen.about
