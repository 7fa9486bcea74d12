"""OffsetCommit, OffsetFetch and OffsetDelete: the committed offsets of groups.

A long request is handled in parts, in slices of the event loop: a commit of more offsets than
PIECE_OFFSETS is several writes, each of which checks the member's generation.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from metaquorum.dataplane.coordinators.client_budget import ClientBudget
from metaquorum.dataplane.coordinators.group.committed_offsets import CommittedOffsets, piece_rows
from metaquorum.dataplane.coordinators.group.group_shard import (
    CommitRequest,
    GroupShard,
    OffsetToCommit,
)
from metaquorum.dataplane.coordinators.group.record_formats import OffsetValue
from metaquorum.dataplane.coordinators.partitioning import REMEMBERED_CHARACTERS
from metaquorum.dataplane.coordinators.shard import Write
from metaquorum.dataplane.handlers.groups.asking import (
    Answer,
    CoordinatesGroups,
    GroupResponse,
    ask,
)
from metaquorum.dataplane.handlers.groups.parts import Codes, WritesInParts, write_in_parts
from metaquorum.dataplane.scheduling.time_slices import (
    PIECE_ROWS,
    Steps,
    each_of,
    in_pieces,
    pause,
    row_count,
)
from metaquorum.dataplane.worker.capabilities import HasSlicer
from metaquorum.dataplane.worker.context import Request
from metaquorum.dataplane.worker.feature_levels import has_level
from metaquorum.metadata.image import MetadataImage, TopicImage
from metaquorum.quorum.controller.internal_topics import GROUPS_LEVEL
from metaquorum.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from metaquorum.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from metaquorum.wire.messages.offset_fetch import (
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
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.types import ZERO_UUID, Uuid
from metaquorum.wire.schema.message import Message

R = TypeVar("R", OffsetFetchResponsePartition, OffsetFetchResponsePartitions)

NOTHING_COMMITTED: Final = -1
# At a metadata.version below that of groups.
_NO_OFFSETS: Final = CommittedOffsets(ClientBudget("", lambda: 0))
_COMMIT_TOPIC_IDS_SINCE: Final = 10  # KIP-848
_FETCH_GROUPS_SINCE: Final = 8  # KIP-709
_FETCH_TOPIC_IDS_SINCE: Final = 10
_FETCH_ERROR_SINCE: Final = 2
_UNSTABLE: Final = ErrorCode.UNSTABLE_OFFSET_COMMIT
_COMMIT_GROUP_NOT_FOUND_SINCE: Final = 9
# Errors of a commit as Kafka names them: of one that is too large for one batch, and in old
# versions, of a generation without its group.
_RENAMED: Final = {ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
_RENAMED_IN_OLD: Final = {**_RENAMED, ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.ILLEGAL_GENERATION}


class CoordinatesOffsets(CoordinatesGroups, WritesInParts, Protocol):
    """Capability to run operations on the offsets of groups, and free their rows in slices."""


# OffsetCommit


def handle_offset_commit(
    worker: CoordinatesOffsets, request: Request, message: OffsetCommitRequest
) -> Answer | GroupResponse | Steps[Message | GroupResponse]:
    commit = _Commit(worker, request, message)
    is_long = piece_rows(message.group_id) < PIECE_ROWS
    if is_long or row_count(message.topics, _partitions_of) > PIECE_ROWS:
        return commit.in_parts()
    return commit.at_once()


def _partitions_of(topic: OffsetCommitRequestTopic) -> list[OffsetCommitRequestPartition]:
    return topic.partitions


class _Commit:
    """One OffsetCommit: nearly all commit a few offsets, in one step; long ones in parts."""

    __slots__ = (
        "_checked",
        "_client",
        "_has_ids",
        "_image",
        "_message",
        "_offsets",
        "_renamed",
        "_unknown",
        "_worker",
    )

    def __init__(
        self, worker: CoordinatesOffsets, request: Request, message: OffsetCommitRequest
    ) -> None:
        self._worker = worker
        self._client = request.client.account
        self._image = worker.image
        version = request.version
        self._message = message
        self._has_ids = version >= _COMMIT_TOPIC_IDS_SINCE
        self._unknown = (
            ErrorCode.UNKNOWN_TOPIC_ID if self._has_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        is_old = version < _COMMIT_GROUP_NOT_FOUND_SINCE
        self._renamed = _RENAMED_IN_OLD if is_old else _RENAMED
        self._offsets: list[OffsetToCommit] = []
        self._checked: list[ErrorCode] = []  # the errors of all rows, if they are handled at once

    def at_once(self) -> Answer | GroupResponse:
        for topic in self._message.topics:
            image = self._topic(topic)
            for row in topic.partitions:
                self._checked.append(self._check(image, row))
        if not self._offsets:
            return self._answered([])
        group_id = self._message.group_id
        return ask(self._worker, group_id, self._commit_all, self._answered, self._failed)

    def _commit_all(self, shard: GroupShard) -> Write[list[ErrorCode]] | list[ErrorCode]:
        outcome = self._operate(self._offsets, shard)
        return self._of_all(outcome) if isinstance(outcome, ErrorCode) else outcome

    def _of_all(self, code: ErrorCode) -> list[ErrorCode]:
        return [code] * len(self._offsets)

    def _answered(self, codes: list[ErrorCode]) -> Answer:
        checked, left = iter(self._checked), iter(codes)
        response = OffsetCommitResponse()
        for topic in self._message.topics:
            rows = [self._row(row, next(checked), left) for row in topic.partitions]
            response.topics.append(
                OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=rows)
            )
        return response

    def _failed(self, code: ErrorCode) -> Answer:
        return self._answered(self._of_all(code))

    async def in_parts(self) -> Message | GroupResponse:
        topics = self._message.topics
        images = await in_pieces(topics, self._topic)
        checked = await each_of(
            zip(topics, images, strict=True),
            lambda each: each[0].partitions,
            lambda each, row: self._check(each[1], row),
        )

        def finished(codes: Iterator[ErrorCode], refused: ErrorCode) -> Answer:
            return self._response(checked, codes)

        return await write_in_parts(
            self._worker,
            self._message.group_id,
            self._offsets,
            lambda shard, part: self._operate(part, shard),
            finished,
        )

    async def _response(
        self,
        checked: list[tuple[tuple[OffsetCommitRequestTopic, TopicImage | None], list[ErrorCode]]],
        codes: Iterator[ErrorCode],
    ) -> Message:
        rows = await each_of(
            checked,
            lambda each: zip(each[0][0].partitions, each[1], strict=True),
            lambda _, asked: self._row(*asked, codes),
        )
        topics = await in_pieces(
            rows,
            lambda each: OffsetCommitResponseTopic(
                name=each[0][0][0].name, topic_id=each[0][0][0].topic_id, partitions=each[1]
            ),
        )
        self._worker.slicer.discard(rows, checked)
        return OffsetCommitResponse(topics=topics)

    # One row

    def _topic(self, topic: OffsetCommitRequestTopic) -> TopicImage | None:
        if self._has_ids:
            return self._image.topic_by_id(topic.topic_id)
        return self._image.topic(topic.name)

    def _check(self, topic: TopicImage | None, row: OffsetCommitRequestPartition) -> ErrorCode:
        """Return the error of a row; collect its offset and return NONE if it has none."""
        if topic is None:
            return self._unknown
        if not 0 <= row.partition_index < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self._offsets.append(
            OffsetToCommit(
                topic.name,
                topic.topic_id,
                row.partition_index,
                row.committed_offset,
                row.committed_leader_epoch,
                row.committed_metadata or "",
            )
        )
        return ErrorCode.NONE

    def _operate(
        self, offsets: Sequence[OffsetToCommit], shard: GroupShard
    ) -> Write[list[ErrorCode]] | Codes:
        clock, message = self._worker.clock, self._message
        return shard.commit(
            clock.monotonic(),
            clock.now_ms(),
            CommitRequest(
                message.group_id,
                message.member_id,
                message.group_instance_id,
                message.generation_id_or_member_epoch,
                offsets,
                message.retention_time_ms,
                client=self._client,
            ),
        )

    def _row(
        self, row: OffsetCommitRequestPartition, checked: ErrorCode, codes: Iterator[ErrorCode]
    ) -> OffsetCommitResponsePartition:
        code = _code_of(checked, codes)
        return OffsetCommitResponsePartition(
            partition_index=row.partition_index, error_code=self._renamed.get(code, code)
        )


# OffsetDelete


async def handle_offset_delete(
    worker: CoordinatesOffsets, request: Request, message: OffsetDeleteRequest
) -> Message | GroupResponse:
    if not message.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    image, client = worker.image, request.client.account

    places: list[tuple[str, int]] = []

    def place(topic: OffsetDeleteRequestTopic, row: OffsetDeleteRequestPartition) -> ErrorCode:
        known = image.topic(topic.name)
        if known is None or not 0 <= row.partition_index < len(known.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        places.append((topic.name, row.partition_index))
        return ErrorCode.NONE

    rows = await each_of(message.topics, lambda topic: topic.partitions, place)

    def finished(codes: Iterator[ErrorCode], refused: ErrorCode) -> Answer:
        if refused is not ErrorCode.NONE:
            worker.slicer.discard(rows)
            return OffsetDeleteResponse(error_code=refused)
        return _deleted(worker, rows, codes)

    return await write_in_parts(
        worker,
        message.group_id,
        places,
        lambda shard, part: shard.delete_offsets(message.group_id, part, client),
        finished,
        even_without_rows=True,
    )


async def _deleted(
    worker: HasSlicer,
    checked: list[tuple[OffsetDeleteRequestTopic, list[ErrorCode]]],
    codes: Iterator[ErrorCode],
) -> Message:
    def row(
        _: object, asked: tuple[OffsetDeleteRequestPartition, ErrorCode]
    ) -> OffsetDeleteResponsePartition:
        return OffsetDeleteResponsePartition(
            partition_index=asked[0].partition_index, error_code=_code_of(asked[1], codes)
        )

    rows = await each_of(checked, lambda each: zip(each[0].partitions, each[1], strict=True), row)
    topics = await in_pieces(
        rows,
        lambda each: OffsetDeleteResponseTopic(name=each[0][0].name, partitions=each[1]),
    )
    worker.slicer.discard(rows, checked)
    return OffsetDeleteResponse(topics=topics)


def _code_of(checked: ErrorCode, codes: Iterator[ErrorCode]) -> ErrorCode:
    """Return the error of a row: that of its check, or the next of the written ones."""
    return next(codes) if checked is ErrorCode.NONE else checked


# OffsetFetch


async def handle_offset_fetch(
    worker: CoordinatesOffsets, request: Request, message: OffsetFetchRequest
) -> OffsetFetchResponse:
    """Return committed offsets, -1 where none is committed.

    Below the level of metadata.version that groups need, nothing is committed: consumers that
    assign their partitions themselves, and name a group because they must, continue as before. An
    offset that a request names several times is returned once: a value may have 4096 characters.
    With `require_stable`, an offset that a pending commit or an open transaction may change has
    the error UNSTABLE_OFFSET_COMMIT, which clients retry (KIP-447).
    """
    shown = _Shown()
    try:
        if request.version < _FETCH_GROUPS_SINCE:
            return await _of_one_group(worker, request.version, message, shown)
        groups = []
        for number, group in enumerate(message.groups, 1):
            if group.topics is not None or shown.is_new(group.group_id):
                of_group = await _of_group(worker, request.version, message, group, shown)
                groups.append(of_group)
            if number % PIECE_ROWS == 0 or len(group.group_id) > REMEMBERED_CHARACTERS:
                await pause()
        return OffsetFetchResponse(groups=groups)
    finally:
        worker.slicer.discard(shown.seen)


class _Shown:
    """Set of the groups and the single offsets that a response has already."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen: set[object] = set()

    def is_new(self, what: object) -> bool:
        count = len(self.seen)
        self.seen.add(what)
        return len(self.seen) > count


def _offsets(worker: CoordinatesGroups, group_id: str) -> CommittedOffsets:
    """Return the offsets of the group's shard.

    Raises KafkaError unless this worker has it, and while the group is being deleted: a part of its
    offsets is not an answer.
    """
    if not has_level(worker.image, GROUPS_LEVEL):
        return _NO_OFFSETS
    shard = worker.groups.shard(group_id)
    if group_id in shard.being_deleted:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the group is being deleted")
    return shard.offsets


def _is_coordinator_of(worker: CoordinatesGroups, group_id: str, offsets: CommittedOffsets) -> bool:
    """Return whether the rows that were read in slices are all those of an active shard.

    A shard whose leadership has ended is emptied: its rows show that nothing was committed.
    """
    try:
        return _offsets(worker, group_id) is offsets
    except KafkaError:
        return False


async def _of_one_group(
    worker: CoordinatesOffsets, version: int, message: OffsetFetchRequest, shown: _Shown
) -> OffsetFetchResponse:
    group_id, image = message.group_id, worker.image
    asked = message.topics
    try:
        offsets = _offsets(worker, group_id)
    except KafkaError as error:
        return await _refused(worker, version, asked or (), error.code)
    if asked is None:
        asked = [
            OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
            for name, indexes in offsets.places(group_id)
        ]

    def found(topic: OffsetFetchRequestTopic, index: int) -> OffsetFetchResponsePartition | None:
        if not shown.is_new((topic.name, index)):
            return None
        if message.require_stable and offsets.is_unstable(group_id, topic.name, index):
            return _row(OffsetFetchResponsePartition, index, None, _UNSTABLE)
        topic_id = _topic_id(image, topic.name)
        value = offsets.fetch(group_id, topic.name, index, topic_id)
        return _row(OffsetFetchResponsePartition, index, value)

    rows = await each_of(asked, lambda topic: topic.partition_indexes, found)
    if not _is_coordinator_of(worker, group_id, offsets):
        worker.slicer.discard(rows)
        return await _refused(worker, version, asked, ErrorCode.NOT_COORDINATOR)
    topics = await in_pieces(
        rows, lambda each: OffsetFetchResponseTopic(name=each[0].name, partitions=_new(each[1]))
    )
    worker.slicer.discard(rows)
    return OffsetFetchResponse(topics=topics)


async def _refused(
    worker: HasSlicer, version: int, asked: Iterable[OffsetFetchRequestTopic], code: ErrorCode
) -> OffsetFetchResponse:
    """Return the response with an error of the coordinator: in old versions, of each partition."""
    if version >= _FETCH_ERROR_SINCE:
        return OffsetFetchResponse(error_code=code)
    rows = await each_of(
        asked,
        lambda topic: topic.partition_indexes,
        lambda _, index: _row(OffsetFetchResponsePartition, index, None, code),
    )
    topics = await in_pieces(
        rows, lambda each: OffsetFetchResponseTopic(name=each[0].name, partitions=each[1])
    )
    worker.slicer.discard(rows)
    return OffsetFetchResponse(topics=topics)


def _new(rows: list[R | None]) -> list[R]:
    """Return the rows that the response does not have yet."""
    return [row for row in rows if row is not None]


async def _of_group(
    worker: CoordinatesOffsets,
    version: int,
    message: OffsetFetchRequest,
    group: OffsetFetchRequestGroup,
    shown: _Shown,
) -> OffsetFetchResponseGroup:
    group_id, image = group.group_id, worker.image
    response = OffsetFetchResponseGroup(group_id=group_id)
    try:
        offsets = _offsets(worker, group_id)
    except KafkaError as error:
        response.error_code = error.code
        return response
    has_ids = version >= _FETCH_TOPIC_IDS_SINCE
    asked, is_all = group.topics, group.topics is None
    if asked is None:
        asked = [
            OffsetFetchRequestTopics(
                name=name, topic_id=_topic_id(image, name), partition_indexes=indexes
            )
            for name, indexes in offsets.places(group_id)
        ]
        if has_ids:
            asked = [topic for topic in asked if topic.topic_id != ZERO_UUID]

    def found(topic: OffsetFetchRequestTopics, index: int) -> OffsetFetchResponsePartitions | None:
        key = topic.topic_id if has_ids else topic.name
        if not is_all and not shown.is_new((group_id, key, index)):
            return None
        name, topic_id = topic.name, topic.topic_id
        if has_ids:
            known = image.topic_names.get(topic_id)
            if known is None:
                return _row(OffsetFetchResponsePartitions, index, None, ErrorCode.UNKNOWN_TOPIC_ID)
            name = known
        else:
            topic_id = _topic_id(image, name)
        if message.require_stable and offsets.is_unstable(group_id, name, index):
            return _row(OffsetFetchResponsePartitions, index, None, _UNSTABLE)
        value = offsets.fetch(group_id, name, index, topic_id)
        return _row(OffsetFetchResponsePartitions, index, value)

    rows = await each_of(asked, lambda topic: topic.partition_indexes, found)
    if not _is_coordinator_of(worker, group_id, offsets):
        worker.slicer.discard(rows)
        response.error_code = ErrorCode.NOT_COORDINATOR
        return response
    for number, (topic, all_partitions) in enumerate(rows):
        if number % PIECE_ROWS == 0:
            await pause()
        partitions = _new(all_partitions)
        if is_all:
            partitions = [
                each for each in partitions if each.committed_offset >= 0 or each.error_code
            ]
            if not partitions:
                continue
        response.topics.append(
            OffsetFetchResponseTopics(
                name=topic.name, topic_id=topic.topic_id, partitions=partitions
            )
        )
    worker.slicer.discard(rows)
    return response


def _topic_id(image: MetadataImage, name: str) -> Uuid:
    topic = image.topic(name)
    return ZERO_UUID if topic is None else topic.topic_id


def _row(
    kind: type[R], index: int, value: OffsetValue | None, code: ErrorCode = ErrorCode.NONE
) -> R:
    """Return the row of a partition, in the type of the request's version."""
    row = kind(
        partition_index=index, committed_offset=NOTHING_COMMITTED, metadata="", error_code=code
    )
    if value is not None:
        row.committed_offset, row.committed_leader_epoch = value.offset, value.leader_epoch
        row.metadata = value.metadata
    return row
