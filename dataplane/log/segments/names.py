"""Names of files and folders in a log directory, with Kafka's names where Kafka has them."""

import re
from typing import Final

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
ABORTED_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
DELETED: Final = ".deleted"
# Compaction writes a segment with the suffix .cleaned, and renames it to .swap once it is synced:
# from then on recovery uses it instead of the segments that were cleaned.
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
# Suffixes of files that were being written or removed when the process died.
LEFTOVERS: Final = (DELETED, CLEANED, ".tmp")

EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
LOG_START_CHECKPOINT: Final = "log-start-offset-checkpoint"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LAST_START: Final = ".metaquorum_started"
SYNCING: Final = ".metaquorum_syncing"
# In a partition's folder: recovery removed damaged batches, and the controller may not know yet.
DAMAGED: Final = ".metaquorum_damaged"
# In a partition's folder: the log's id, and the ids of the logs that it replaces (`moved_logs`).
MOVED: Final = ".metaquorum_moved"
LOCK: Final = ".lock"

DELETED_FOLDER: Final = "-delete"
STRAY_FOLDER: Final = "-stray"
FUTURE_FOLDER: Final = "-future"
MAX_FOLDER_NAME: Final = 255

_NUMBERED: Final = re.compile(r"(\d{20})(\.[a-z]+)\Z")
_STRAY: Final = re.compile(r"-\d{1,10}\.([0-9a-f]{12})[0-9a-f]{20}-stray\Z")
_FUTURE: Final = re.compile(r"([A-Za-z0-9._-]{1,249})-(\d{1,10})\.[0-9A-Za-z_]+-future\Z")
_RETIRED: Final = re.compile(r"[A-Za-z0-9._-]*-\d{1,10}\.[0-9A-Za-z_-]+-(delete|stray)\Z")
_PARTITION: Final = re.compile(r"([A-Za-z0-9._-]{1,249})-(\d{1,10})\Z")


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def parse_file_name(name: str) -> tuple[int, str] | None:
    """Return the offset and suffix of a segment or snapshot file; None for any other name."""
    match = _NUMBERED.match(name)
    return (int(match[1]), match[2]) if match else None


def partition_folder(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_partition_folder(name: str) -> tuple[str, int] | None:
    match = _PARTITION.match(name)
    return (match[1], int(match[2])) if match else None


def parse_future_folder(name: str) -> tuple[str, int] | None:
    """Return topic and partition of a log that is being copied here; None for any other name."""
    match = _FUTURE.match(name)
    return (match[1], int(match[2])) if match else None


def stray_unique(now_ms: int, bits: int) -> str:
    """Return the unique part of a stray folder's name: `now_ms` and 80 of `bits` as hex digits."""
    return f"{now_ms:012x}{bits & (1 << 80) - 1:020x}"


def stray_since_ms(name: str) -> int | None:
    """Return the time in ms at which the log became a stray; None if `name` is not of a stray."""
    match = _STRAY.search(name)
    return int(match[1], 16) if match else None


def is_retired_folder(name: str) -> bool:
    """Return whether this is the name of a deleted log or of a stray, as `retired_folder` makes."""
    return _RETIRED.match(name) is not None


def retired_folder(topic: str, partition: int, unique: str, ending: str) -> str:
    """Return `<topic>-<partition>.<unique><ending>`, truncated in `topic` to 255 characters."""
    rest = f"-{partition}.{unique}{ending}"
    return topic[: MAX_FOLDER_NAME - len(rest)] + rest
