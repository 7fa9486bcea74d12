"""Committed offsets of groups: reading, committing and deleting them, and deletion of groups.

A commit or a deletion that was sent is not sent again unless the coordinator refused it: a consumer
may have joined and committed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from metaquorum.client.cluster import Answers, Cluster, TopicPartition
from metaquorum.client.errors import BrokerError, broker_error
from metaquorum.client.groups.coordinators import (
    Outcomes,
    answered,
    ask_coordinators,
    is_retried,
    subject,
)
from metaquorum.client.groups.values import CommittedOffset
from metaquorum.wire.primitives.errors import ErrorCode

if TYPE_CHECKING:
    from metaquorum.wire.messages.delete_groups import DeleteGroupsResponse
    from metaquorum.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
    from metaquorum.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
    from metaquorum.wire.messages.offset_fetch import (
        OffsetFetchRequest,
        OffsetFetchResponse,
        OffsetFetchResponseTopic,
        OffsetFetchResponseTopics,
    )
    from metaquorum.wire.schema.message import Message

Committed: TypeAlias = dict[TopicPartition, CommittedOffset]

# Later versions identify topics by topic id; the name stays known after a topic was deleted.
_NAMES_UNTIL: Final = 9
_MANY_GROUPS_SINCE: Final = 8  # OffsetFetch: KIP-709
_NO_GENERATION: Final = -1  # generation of a commit without a member


async def committed_offsets(cluster: Cluster, groups: Sequence[str]) -> Outcomes[Committed]:
    """Return the committed offsets of each group; none for a group that does not exist.

    Brokers before Kafka 3.0 get a request per group.
    """
    from metaquorum.wire.messages.offset_fetch import OffsetFetchRequest

    deadline = cluster.deadline()

    async def ask(node_id: int, own: list[str]) -> Outcomes[Committed]:
        connection = await cluster.connection(node_id, deadline)
        if connection.version_of(OffsetFetchRequest) >= _MANY_GROUPS_SINCE:
            return await _fetch_many(cluster, node_id, own, deadline)
        return {group: await _fetch_one(cluster, node_id, group, deadline) for group in own}

    return await ask_coordinators(cluster, groups, ask, deadline)


async def _fetch_many(
    cluster: Cluster, node_id: int, groups: list[str], deadline: float
) -> Outcomes[Committed]:
    from metaquorum.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups]
    )
    response: OffsetFetchResponse = await cluster.call(
        request, to=node_id, deadline=deadline, max_version=_NAMES_UNTIL
    )
    found = {
        each.group_id: _committed(each.group_id, each.error_code, each.topics)
        for each in response.groups
    }
    return answered(found, groups)


async def _fetch_one(
    cluster: Cluster, node_id: int, group: str, deadline: float
) -> Committed | BrokerError:
    from metaquorum.wire.messages.offset_fetch import OffsetFetchRequest

    request = OffsetFetchRequest(group_id=group, topics=None)
    response: OffsetFetchResponse = await cluster.call(request, to=node_id, deadline=deadline)
    return _committed(group, response.error_code, response.topics)


def _committed(
    group: str,
    error_code: int,
    topics: Iterable[OffsetFetchResponseTopic | OffsetFetchResponseTopics],
) -> Committed | BrokerError:
    """Return the offsets in a response, or the first error in it."""
    if error_code:
        return broker_error(error_code, None, subject(group))
    found: Committed = {}
    for topic in topics:
        for row in topic.partitions:
            where = TopicPartition(topic.name, row.partition_index)
            if row.error_code:
                return broker_error(row.error_code, None, _subject(group, where))
            if row.committed_offset >= 0:
                found[where] = CommittedOffset(
                    row.committed_offset, row.committed_leader_epoch, row.metadata or ""
                )
    return dict(sorted(found.items()))


def _subject(group: str, where: TopicPartition) -> str:
    return f"group {group}, partition {where}"


async def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]
) -> Answers[None]:
    """Commit offsets for a group without members; the outcome of a committed partition is None.

    The coordinator refuses it with UNKNOWN_MEMBER_ID while the group has members, and creates a
    group that does not exist. Raises InterruptedChangeError if the response was lost, and
    BrokerError if the coordinator refuses the whole request.
    """
    deadline = cluster.deadline()

    async def ask(node_id: int, groups: list[str]) -> Outcomes[Answers[None]]:
        response: OffsetCommitResponse = await cluster.call(
            commit_request(group, {w: CommittedOffset(offset) for w, offset in offsets.items()}),
            to=node_id,
            deadline=deadline,
            changes=True,
            max_version=_NAMES_UNTIL,
        )
        answers: Answers[None] = {}
        for topic in response.topics:
            for row in topic.partitions:
                where = TopicPartition(topic.name, row.partition_index)
                answers[where] = _error(row.error_code, _subject(group, where))
        return dict.fromkeys(groups, _retried(answers) or answers)

    outcome = (await ask_coordinators(cluster, [group], ask, deadline))[group]
    return _by_partition(outcome, group, offsets)


def _by_partition(
    outcome: Answers[None] | BrokerError, group: str, partitions: Iterable[TopicPartition]
) -> Answers[None]:
    """Return the outcome of each partition, an error for one that is not in the response.

    Raises BrokerError if the outcome is one.
    """
    if isinstance(outcome, BrokerError):
        raise outcome
    absent = "the response does not contain the partition"
    return {
        where: outcome[where]
        if where in outcome
        else BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, absent, _subject(group, where))
        for where in partitions
    }


def commit_request(
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    generation: int = _NO_GENERATION,
    member_id: str = "",
    instance_id: str | None = None,
) -> OffsetCommitRequest:
    """Return the request that commits `offsets`, as a member or without one."""
    from metaquorum.wire.messages.offset_commit import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
    )

    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=where.partition,
                        committed_offset=offsets[where].offset,
                        committed_leader_epoch=offsets[where].leader_epoch,
                        committed_metadata=offsets[where].metadata,
                    )
                    for where in partitions
                ],
            )
            for topic, partitions in by_topic(offsets).items()
        ],
    )


def first_commit_error(response: OffsetCommitResponse, group: str) -> BrokerError | None:
    """Return the first error in the response; one of the group comes before one of a partition."""
    errors = [
        broker_error(row.error_code, None, _subject(group, TopicPartition(topic.name, index)))
        for topic in response.topics
        for row in topic.partitions
        if row.error_code
        for index in (row.partition_index,)
    ]
    return min(errors, key=lambda error: error.retriable, default=None)


def fetch_request(
    group: str,
    partitions: Iterable[TopicPartition],
    version_of: Callable[[type[Message]], int],
) -> tuple[OffsetFetchRequest, int]:
    """Return the request for the committed offsets of partitions, and its last version.

    The coordinator refuses to return offsets that an open transaction may change (KIP-447).
    """
    from metaquorum.wire.messages.offset_fetch import (
        OffsetFetchRequest,
        OffsetFetchRequestGroup,
        OffsetFetchRequestTopic,
        OffsetFetchRequestTopics,
    )

    indexes = {
        topic: [where.partition for where in own] for topic, own in by_topic(partitions).items()
    }
    if version_of(OffsetFetchRequest) >= _MANY_GROUPS_SINCE:
        topics = [
            OffsetFetchRequestTopics(name=topic, partition_indexes=own)
            for topic, own in indexes.items()
        ]
        groups = [OffsetFetchRequestGroup(group_id=group, topics=topics)]
        return OffsetFetchRequest(groups=groups, require_stable=True), _NAMES_UNTIL
    one = [
        OffsetFetchRequestTopic(name=topic, partition_indexes=own) for topic, own in indexes.items()
    ]
    request = OffsetFetchRequest(group_id=group, topics=one, require_stable=True)
    return request, _NAMES_UNTIL


def committed_of_partitions(response: OffsetFetchResponse, group: str) -> Committed | BrokerError:
    """Return the offsets in the response to `fetch_request`, or the first error in it."""
    for each in response.groups:
        return _committed(group, each.error_code, each.topics)
    return _committed(group, response.error_code, response.topics)


async def delete_offsets(
    cluster: Cluster, group: str, partitions: Sequence[TopicPartition]
) -> Answers[None]:
    """Delete committed offsets; the outcome of a deleted or absent one is None.

    The outcome is GROUP_SUBSCRIBED_TO_TOPIC while a member subscribes to the topic. Raises
    BrokerError if there is no such group, or the coordinator refuses the whole request.
    """
    deadline = cluster.deadline()

    async def ask(node_id: int, groups: list[str]) -> Outcomes[Answers[None]]:
        response: OffsetDeleteResponse = await cluster.call(
            _delete_request(group, partitions), to=node_id, deadline=deadline, changes=True
        )
        if refusal := _error(response.error_code, subject(group)):
            return {group: refusal}
        answers: Answers[None] = {}
        for topic in response.topics:
            for row in topic.partitions:
                where = TopicPartition(topic.name, row.partition_index)
                answers[where] = _error(row.error_code, _subject(group, where))
        return dict.fromkeys(groups, _retried(answers) or answers)

    outcome = (await ask_coordinators(cluster, [group], ask, deadline))[group]
    return _by_partition(outcome, group, partitions)


def _delete_request(group: str, partitions: Sequence[TopicPartition]) -> OffsetDeleteRequest:
    from metaquorum.wire.messages.offset_delete import (
        OffsetDeleteRequest,
        OffsetDeleteRequestPartition,
        OffsetDeleteRequestTopic,
    )

    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic,
                partitions=[
                    OffsetDeleteRequestPartition(partition_index=where.partition) for where in own
                ],
            )
            for topic, own in by_topic(partitions).items()
        ],
    )


async def delete_groups(cluster: Cluster, groups: Sequence[str]) -> Outcomes[None]:
    """Delete groups without members and their offsets; the outcome of a deleted group is None."""
    from metaquorum.wire.messages.delete_groups import DeleteGroupsRequest

    deadline = cluster.deadline()

    async def ask(node_id: int, own: list[str]) -> Outcomes[None]:
        response: DeleteGroupsResponse = await cluster.call(
            DeleteGroupsRequest(groups_names=own), to=node_id, deadline=deadline, changes=True
        )
        found = {
            each.group_id: _error(each.error_code, subject(each.group_id))
            for each in response.results
        }
        return answered(found, own)

    return await ask_coordinators(cluster, groups, ask, deadline)


# Responses have no message; these say more than the name of the code.
_TEXTS: Final = {
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has members, and only they may commit offsets",
    ErrorCode.NON_EMPTY_GROUP: "the group has members",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "a member of the group subscribes to the topic",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such partition",
}


def _error(code: int, what: str) -> BrokerError | None:
    if not code:
        return None
    error = broker_error(code, None, what)
    error.message = _TEXTS.get(error.code, error.message)
    return error


def _retried(answers: Answers[None]) -> BrokerError | None:
    """Return the first error after which the whole request is sent again."""
    return next((each for each in answers.values() if each and is_retried(each)), None)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Return the partitions by topic name."""
    grouped: dict[str, list[TopicPartition]] = {}
    for where in partitions:
        grouped.setdefault(where.topic, []).append(where)
    return grouped
