"""Facts that explain why a group does not consume, gathered from all workers concerned.

    the group's coordinator     members, late requests, rebalances, committed offsets
    the metadata                partitions of the topics that the members subscribe to
    the partition leaders       unread records, twice, to see whether they become more
    every worker                quotas that delay the members

A worker that does not answer, or refuses, is among the `failures`; the other facts remain.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from metaquorum.client.administration.admin import AdminClient
from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.errors import AdminError, BrokerError
from metaquorum.client.groups.explanation.activity import (
    GroupActivity,
    MemberActivity,
    describe_activity,
)
from metaquorum.client.groups.explanation.unread import Unread, describe_unread
from metaquorum.client.groups.offsets import committed_offsets
from metaquorum.client.usage.quota_use import QuotaClient, QuotaUse, describe_quota_use
from metaquorum.metadata.quota_lookup import CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE
from metaquorum.wire.primitives.frozen import frozen

MAX_CLIENTS: Final = 100  # in one request for the use of quotas
_KEYS: Final = (CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)


@frozen
class Sample:
    """Progress in one partition at one time. None: not known, or nothing committed."""

    committed: int | None
    unread: Unread | None

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the high watermark; negative if beyond it."""
        if self.committed is None or self.unread is None:
            return None
        return self.unread.high_watermark - self.committed

    @property
    def is_uncommitted(self) -> bool:
        """Whether there are records, and nothing was committed."""
        return self.committed is None and self.unread is not None and self.unread.records > 0


@frozen
class PartitionProgress:
    """Progress of a group in one partition. `before`: an earlier sample, `elapsed_s` ago.

    `age_s`: age of the first unread record, 0 if all are read.
    """

    where: TopicPartition
    owner: MemberActivity | None
    is_subscribed: bool
    has_leader: bool
    now: Sample
    age_s: float | None
    before: Sample | None
    elapsed_s: float

    @property
    def growth_per_s(self) -> float | None:
        """Records a second by which the lag grows; negative if it shrinks. None: not known."""
        if self.before is None or self.before.lag is None or self.now.lag is None:
            return None
        return (self.now.lag - self.before.lag) / self.elapsed_s if self.elapsed_s else None

    @property
    def is_uncommitted(self) -> bool:
        """Whether a member owns the partition, which has records, and nothing was committed."""
        return self.owner is not None and self.now.is_uncommitted

    @property
    def has_grown(self) -> bool:
        """Whether records were written since the earlier sample."""
        if self.before is None or self.before.unread is None or self.now.unread is None:
            return False
        return self.now.unread.high_watermark > self.before.unread.high_watermark

    @property
    def has_moved(self) -> bool | None:
        """Whether the committed offset has changed since the earlier sample."""
        return None if self.before is None else self.before.committed != self.now.committed


@frozen
class Throttling:
    """A quota that delays members on one worker. `muted_s`: by client connections, longest."""

    members: Sequence[MemberActivity]
    use: QuotaUse
    muted_s: float

    @property
    def is_active(self) -> bool:
        """Whether a response was delayed within the window of the quota."""
        return self.muted_s > 0 or self.use.delay_s > 0 or self.use.throttle_recent_s > 0


@frozen
class GroupFacts:
    """`missing_topics`: topics that do not exist, and to which members subscribe."""

    activity: GroupActivity
    partitions: Sequence[PartitionProgress]
    missing_topics: Sequence[str]
    throttling: Sequence[Throttling]
    failures: Sequence[Exception]

    @property
    def unowned(self) -> list[TopicPartition]:
        """Partitions of subscribed topics that no member owns; none if assignments are unknown."""
        if any(member.assignment is None for member in self.activity.members):
            return []
        return [each.where for each in self.partitions if each.is_subscribed and each.owner is None]

    @property
    def unsubscribed(self) -> list[PartitionProgress]:
        """Partitions with a committed offset to which no member subscribes; none if not known."""
        members = self.activity.members
        if not members or any(member.subscription is None for member in members):
            return []
        return [
            each
            for each in self.partitions
            if not each.is_subscribed and each.owner is None and each.now.committed is not None
        ]

    @property
    def idle(self) -> list[MemberActivity]:
        """Members without a partition."""
        return [
            member
            for member in self.activity.members
            if member.assignment is not None and not member.assignment.partitions
        ]


async def gather(cluster: Cluster, group: str, *, sample_s: float) -> GroupFacts:
    """Return the facts about a group, with samples of its progress `sample_s` seconds apart.

    There is one sample, and no growth, if `sample_s` is 0 or the group has read everything and
    has committed offsets of all its partitions with records.
    Raises BrokerError if the coordinator refuses or the group does not exist, and NotServedError if
    the cluster is Apache Kafka.
    """
    (activity,) = (await describe_activity(cluster, [group])).values()
    if isinstance(activity, BrokerError):
        raise activity
    failures: list[Exception] = []
    committed = await _committed(cluster, group)
    there, missing = await _partitions_of(cluster, activity.topics() | {w.topic for w in committed})
    wanted = sorted(
        activity.owners().keys()
        | committed.keys()
        | {where for where in there if where.topic in activity.topics()}
    )
    led: dict[int, list[TopicPartition]] = {}
    for where in wanted:
        if (leader := there.get(where)) is not None:
            led.setdefault(leader, []).append(where)
    began = cluster.transport.monotonic()
    unread = await _unread(cluster, led, committed, failures)
    before = {where: Sample(committed.get(where), unread.get(where)) for where in wanted}
    owned = activity.owners()
    is_again = sample_s > 0 and any(
        each.lag or (where in owned and each.is_uncommitted) for where, each in before.items()
    )
    if is_again:
        await cluster.transport.sleep_until(began + sample_s)
        committed = await _committed(cluster, group)
        unread = await _unread(cluster, led, committed, failures)
    elapsed_s, now_ms = cluster.transport.monotonic() - began, cluster.transport.now_ms()
    owners, topics = activity.owners(), activity.topics()
    partitions = []
    for where in wanted:
        found = unread.get(where)
        is_known = found is not None and where in committed
        partitions.append(
            PartitionProgress(
                where,
                owners.get(where),
                where.topic in topics,
                there.get(where) is not None,
                Sample(committed.get(where), found),
                found.age_s(now_ms) if found is not None and is_known else None,
                before[where] if is_again else None,
                elapsed_s,
            )
        )
    return GroupFacts(
        activity,
        partitions,
        [topic for topic in missing if topic in topics],
        await _throttling(cluster, activity.members, failures),
        failures,
    )


async def _committed(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    (committed,) = (await committed_offsets(cluster, [group])).values()
    if isinstance(committed, BrokerError):
        raise committed
    return {where: each.offset for where, each in committed.items()}


async def _partitions_of(
    cluster: Cluster, topics: Iterable[str]
) -> tuple[dict[TopicPartition, int | None], list[str]]:
    """Return the leader of each partition, if any, and the topics that do not exist."""
    there: dict[TopicPartition, int | None] = {}
    missing: list[str] = []
    described = await AdminClient(cluster).describe_topics(sorted(topics))
    for name, topic in described.items():
        if isinstance(topic, BrokerError):
            missing.append(name)
            continue
        for partition in topic.partitions:
            there[TopicPartition(name, partition.index)] = partition.leader
    return there, missing


async def _unread(
    cluster: Cluster,
    led: dict[int, list[TopicPartition]],
    committed: Mapping[TopicPartition, int],
    failures: list[Exception],
) -> dict[TopicPartition, Unread]:
    """Return what follows the committed offsets; from the log start on, where there is none.

    A leader that fails is removed from `led`: it is not asked again.
    """
    unread: dict[TopicPartition, Unread] = {}
    for leader, partitions in list(led.items()):
        offsets = {where: committed.get(where, 0) for where in partitions}
        try:
            found = await describe_unread(cluster, offsets)
        except (AdminError, BrokerError) as error:
            failures.append(error)
            del led[leader]
            continue
        unread |= {
            where: each for where, each in found.items() if not isinstance(each, BrokerError)
        }
    return unread


async def _throttling(
    cluster: Cluster, members: Sequence[MemberActivity], failures: list[Exception]
) -> list[Throttling]:
    """Return the quotas of the members' clients that have delayed responses, on every worker."""
    by_client: dict[QuotaClient, list[MemberActivity]] = {}
    for member in members:
        if member.user is not None:
            client = QuotaClient(member.user, member.client_id or None)
            by_client.setdefault(client, []).append(member)
    found: list[Throttling] = []
    clients = list(by_client)
    for first in range(0, len(clients), MAX_CLIENTS):
        part = clients[first : first + MAX_CLIENTS]
        for node_id in await cluster.live_nodes():
            try:
                described = await describe_quota_use(
                    cluster, node_id, part, most_used=0, include_muted=True
                )
            except (AdminError, BrokerError) as error:
                failures.append(error)
                continue
            for number, client in enumerate(part):
                for use in described.of_clients[number]:
                    muted_s = max(
                        (
                            each.left_s
                            for each in described.muted
                            if each.key == use.key
                            and (each.user, each.client_id) == (client.user, client.client_id)
                        ),
                        default=0.0,
                    )
                    if use.key in _KEYS and (use.throttle_count or muted_s):
                        found.append(Throttling(by_client[client], use, muted_s))
    return found
