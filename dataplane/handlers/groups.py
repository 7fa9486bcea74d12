"""OffsetFetch without consumer groups: the response has no committed offsets.

A consumer that names a group and assigns its partitions itself (`assign`) fetches its committed
offsets, and then starts at the offset of `auto.offset.reset`. librdkafka 2.16 crashes if the API is
missing.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from dataplane.scheduling.time_slices import PIECE_ROWS, Work, in_pieces
from dataplane.worker.capabilities import HasImage
from dataplane.worker.context import Request
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from wire.primitives.errors import ErrorCode

T = TypeVar("T", OffsetFetchRequestTopic, OffsetFetchRequestTopics)
P = TypeVar("P")
A = TypeVar("A")

NOTHING_COMMITTED: Final = -1
_GROUPS_SINCE: Final = 8
_TOPIC_IDS_SINCE: Final = 10


def handle_offset_fetch(
    worker: HasImage, request: Request, message: OffsetFetchRequest
) -> Work[OffsetFetchResponse]:
    """Return offset -1 without an error for each requested partition, as for a new group."""
    if request.version < _GROUPS_SINCE:
        topics = yield from _of_topics(
            message.topics or (),
            lambda _: _row_before_groups,
            lambda topic, rows: OffsetFetchResponseTopic(name=topic.name, partitions=rows),
        )
        return OffsetFetchResponse(topics=topics)
    groups = []
    for group in message.groups:
        groups.append((yield from _of_group(worker, request, group)))
        if len(groups) % PIECE_ROWS == 0:
            yield
    return OffsetFetchResponse(groups=groups)


def _of_group(
    worker: HasImage, request: Request, group: OffsetFetchRequestGroup
) -> Work[OffsetFetchResponseGroup]:
    def row_of(topic: OffsetFetchRequestTopics) -> Callable[[int], OffsetFetchResponsePartitions]:
        if request.version >= _TOPIC_IDS_SINCE and topic.topic_id not in worker.image.topic_names:
            return partial(_row, ErrorCode.UNKNOWN_TOPIC_ID)
        return partial(_row, ErrorCode.NONE)

    def answered(
        topic: OffsetFetchRequestTopics, rows: list[OffsetFetchResponsePartitions]
    ) -> OffsetFetchResponseTopics:
        return OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=rows)

    topics = yield from _of_topics(group.topics or (), row_of, answered)
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def _of_topics(
    topics: Iterable[T],
    row_of: Callable[[T], Callable[[int], P]],
    answered: Callable[[T, list[P]], A],
) -> Work[list[A]]:
    done: list[A] = []
    for topic in topics:
        rows = yield from in_pieces(topic.partition_indexes, row_of(topic))
        done.append(answered(topic, rows))
        if len(done) % PIECE_ROWS == 0:
            yield
    return done


def _row_before_groups(index: int) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=index, committed_offset=NOTHING_COMMITTED, metadata=""
    )


def _row(code: ErrorCode, index: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=NOTHING_COMMITTED,
        metadata="",
        error_code=code,
    )
