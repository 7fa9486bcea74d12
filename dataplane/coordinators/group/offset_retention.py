"""Retention of committed offsets (KIP-211): when the offsets of a group expire.

    group                                    offsets expire `retention_ms` after  except of
    without protocol type, only with offsets their commit
    empty                                    the group's last change of state
    stable, of consumers                     their commit                         subscribed topics
    any other                                they do not expire

An expiry in the record (`expire_timestamp_ms`, set by old clients) replaces this time, but neither
the condition of the group nor the exception. A group with a type of protocol other than "consumer"
has topics that the coordinator cannot know, so its offsets are kept while it has members.

Source: ClassicGroup.offsetExpirationCondition and OffsetMetadataManager.cleanupExpiredOffsets of
Apache Kafka 4.3.1.
"""

from collections.abc import Collection
from typing import Final

from metaquorum.wire.primitives.frozen import frozen

CONSUMER_PROTOCOL_TYPE: Final = "consumer"


@frozen
class OffsetRetention:
    """Condition under which the offsets of a group expire."""

    # Time in ms from which all offsets of the group are retained; None: each from its commit.
    since_ms: int | None = None
    # Topics with offsets that do not expire.
    subscribed: Collection[str] = ()

    def is_expired(
        self, commit_timestamp_ms: int, expire_timestamp_ms: int, now_ms: int, retention_ms: int
    ) -> bool:
        """Return whether an offset of a topic without subscription is expired (-1: no expiry)."""
        if expire_timestamp_ms != -1:
            return now_ms >= expire_timestamp_ms
        since_ms = commit_timestamp_ms if self.since_ms is None else self.since_ms
        return now_ms - since_ms >= retention_ms


def offset_retention(
    protocol_type: str | None,
    *,
    is_empty: bool,
    is_stable: bool,
    state_timestamp_ms: int | None,
    subscribed: Collection[str] | None,
) -> OffsetRetention | None:
    """Return the retention of a group's offsets; None while they do not expire.

    `state_timestamp_ms` is the time of the last change of state, None if it is unknown: offsets of
    an empty group are then retained from their commit. `subscribed` are the topics to which at
    least one member subscribes, None if they are unknown.
    """
    if not protocol_type:
        return OffsetRetention()
    if is_empty:
        return OffsetRetention(state_timestamp_ms)
    if is_stable and protocol_type == CONSUMER_PROTOCOL_TYPE and subscribed is not None:
        return OffsetRetention(None, subscribed)
    return None
