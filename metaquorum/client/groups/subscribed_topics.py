"""Topics of a subscription, and the numbers of their partitions by the newest metadata."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from metaquorum.client.cluster import Cluster
from metaquorum.client.errors import broker_error
from metaquorum.client.groups.assignors import AssignedMember
from metaquorum.wire.primitives.errors import ErrorCode

# Time after which metadata are fetched again if a subscribed topic does not exist.
ABSENT_TOPIC_AGE_S: Final = 1.0
GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
# Errors of subscribed topics that are raised; after others the last known count remains.
_REFUSED: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION}
)


class SubscribedTopics:
    """Topics that a member subscribes to, by name or by a pattern.

    The leader of a group also follows the topics of the other members.
    """

    def __init__(
        self, cluster: Cluster, max_age_s: float, request_rejoin: Callable[[str], None]
    ) -> None:
        """Create it without topics; `request_rejoin` takes the reason for another rebalance."""
        self.names: frozenset[str] = frozenset()
        self.counts: dict[str, int] = {}  # partitions by topic; 0: there is no such topic
        self._cluster = cluster
        self._max_age_s = max_age_s
        self._request_rejoin = request_rejoin
        self._pattern: re.Pattern[str] | None = None
        self._counts_at = 0.0
        self._is_stale = True
        self._assigned: dict[str, int] | None = None  # by this member as the leader

    def subscribe(self, topics: Iterable[str] | re.Pattern[str]) -> None:
        """Replace the subscription."""
        self._pattern = topics if isinstance(topics, re.Pattern) else None
        self.names = frozenset() if isinstance(topics, re.Pattern) else frozenset(topics)
        self._is_stale = True

    def expire(self) -> None:
        """Let the next refresh fetch the metadata, regardless of their age."""
        self._is_stale = True

    async def refresh(self, members: Sequence[AssignedMember]) -> None:
        """Fetch the counts, if due, and request a rebalance if they or the topics changed.

        `members`: those to which this member assigns partitions.
        """
        now = self._cluster.transport.monotonic()
        is_absent = any(not self.counts.get(topic) for topic in self.names)
        age_s = self._max_age_s
        if is_absent or (self._pattern is not None and not self.names):
            age_s = min(age_s, ABSENT_TOPIC_AGE_S)
        if not self._is_stale and now - self._counts_at < age_s:
            return
        if self._pattern is None and not self.names:
            return
        names = None if self._pattern is not None else sorted(self.names | _topics_of(members))
        found = await self._cluster.refresh(names)
        self._counts_at, self._is_stale = now, False
        before, self.counts = self.counts, dict.fromkeys(names or (), 0)
        for topic in found:
            if topic.name is None:
                continue
            if topic.error_code in _REFUSED:
                raise broker_error(topic.error_code, None, f"topic {topic.name}")
            count = before.get(topic.name, 0)
            if not topic.error_code or topic.error_code in GONE:
                count = len(topic.partitions)
            self.counts[topic.name] = count
            if count != before.get(topic.name):
                self._cluster.forget_topic(topic.name)
        if self._pattern is not None:
            matched = {
                topic.name
                for topic in found
                if topic.name and not topic.is_internal and self._pattern.fullmatch(topic.name)
            }
            if matched != self.names:
                self.names = frozenset(matched)
                self._request_rejoin("other topics match the subscription")
        known = self._assigned
        if known is not None and any(self.counts.get(topic, 0) != known[topic] for topic in known):
            self._assigned = None
            self._request_rejoin("partitions were added or deleted")

    async def counts_to_assign(self, members: Sequence[AssignedMember]) -> dict[str, int]:
        """Return the counts of the members' topics; 0 for those that do not exist.

        A later change of one of them requests a rebalance, until `forget_assigned`.
        """
        topics = _topics_of(members)
        if not topics <= self.counts.keys():
            self._is_stale = True
            await self.refresh(members)
        self._assigned = {topic: self.counts.get(topic, 0) for topic in topics}
        return self._assigned

    def forget_assigned(self) -> None:
        """Request no rebalance for topics of other members: they are those of another leader."""
        self._assigned = None


def _topics_of(members: Iterable[AssignedMember]) -> set[str]:
    return {topic for each in members for topic in each.subscription.topics}
