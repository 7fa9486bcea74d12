"""Groups and committed offsets of one partition of `__consumer_offsets`. Plain state, no I/O.

Every operation returns its answer, None for a JoinGroup or SyncGroup that waits, or a `Write` with
the records and the answer that holds once they are committed
(`metaquorum.dataplane.coordinators.shard`). Commits that are accepted:

    the group                        a commit
    does not exist                   without a generation only; creates the group's offsets
    is being deleted                 none: the client tries again
    has no members                   without a generation, by every client
    has members                      by a member of the current generation; not while the leader's
                                     assignment is missing (COMPLETING_REBALANCE)

In a transaction, commits are also accepted while the assignment is missing, and from clients that
name no member: before version 3, the request has none (KIP-447). They do not extend a session.

Offsets of a group expire `offsets.retention.minutes` after the group became empty; without members
from the start, after the commit; those of a group that consumes other topics, after the commit.
Source: KIP-211, KIP-496, and the behaviour of Kafka 4.3.

A group is deleted, with its offsets, by one batch. If that would be too long:

    deletion decided --the record `is_being_deleted` is appended--> being deleted
    being deleted    --tombstones of all offsets, then the group's, are committed--> deleted

Offsets and members of a group that is being deleted are neither shown nor accepted: requests are
refused with COORDINATOR_LOAD_IN_PROGRESS, which clients retry, and listings show it as dead. The
background task of the coordinator writes the tombstones, also after errors (`answer_deletion`), and
that of the next coordinator does if the leadership ends: so no client sees a part of the offsets.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final, NamedTuple, TypeAlias, TypeVar

from metaquorum.dataplane.coordinators.client_budget import (
    COORDINATOR,
    MAX_NEW_ID_BYTES,
    UNKNOWN,
    ClientBudget,
    Refusal,
    is_longer,
    text_bytes,
)
from metaquorum.dataplane.coordinators.group.classic_group import (
    CONSUMER,
    ClassicGroup,
    MutedUntil,
    group_bytes,
)
from metaquorum.dataplane.coordinators.group.committed_offsets import (
    Added,
    CommittedOffsets,
    TopicIdOf,
)
from metaquorum.dataplane.coordinators.group.committed_offsets import (
    group_bytes as offsets_group_bytes,
)
from metaquorum.dataplane.coordinators.group.group_statistics import GroupStatistics
from metaquorum.dataplane.coordinators.group.members import (
    MEMBER_BYTES,
    REFUSED,
    never_muted,
    protocols_bytes,
)
from metaquorum.dataplane.coordinators.group.offset_retention import (
    OffsetRetention,
    offset_retention,
)
from metaquorum.dataplane.coordinators.group.rebalancing import GroupLimits, GroupState, Persist
from metaquorum.dataplane.coordinators.group.record_formats import (
    DELETED_GROUP_VERSION,
    LONG_VALUE_BYTES,
    GroupKey,
    GroupMetadataValue,
    KeyDecoder,
    MalformedRecordError,
    OffsetKey,
    OffsetValue,
    RecordedGeneration,
    decode_generation,
    decode_group_value,
    decode_key,
    decode_long_group_value,
    encode_group_value,
    encode_key,
    encode_offset_value,
)
from metaquorum.dataplane.coordinators.group.requests import (
    NO_ERROR,
    JoinAnswer,
    JoinCallback,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncCallback,
    SyncRequest,
    member_id_of,
)
from metaquorum.dataplane.coordinators.group.timeouts import Timeouts, is_never_over
from metaquorum.dataplane.coordinators.group.transactional_offsets import Place, waiting_bytes
from metaquorum.dataplane.coordinators.shard import CoordinatorRecord, TransactionOf, Write
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.dataplane.scheduling.time_slices import FORGOTTEN_ROWS, Steps, emptied, pause
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.types import Uuid

# Most protocols of one member: the memory of a member is also bounded by its request.
MAX_PROTOCOLS: Final = 64
# Seconds until the record of an empty group that could not be appended is written again.
WRITE_RETRY_S: Final = 5.0
# Latest time that fits a record: a client may ask to retain an offset without an end.
MAX_TIMESTAMP_MS: Final = 2**63 - 1
_MINUTE_MS: Final = 60_000
A = TypeVar("A")
# Called with the answer to a request for a deletion.
DeletionCallback: TypeAlias = Callable[[ErrorCode], object]


def _ignore(code: ErrorCode) -> None: ...


@dataclass(slots=True)
class GroupConfigs:
    """Configs in force; the names are Kafka's."""

    limits: GroupLimits = field(default_factory=GroupLimits)
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    offsets_retention_ms: int = 10_080 * _MINUTE_MS
    offset_metadata_max_bytes: int = 4096


class OffsetToCommit(NamedTuple):
    topic: str
    topic_id: Uuid
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class CommitRequest(NamedTuple):
    """Offsets to commit; `generation` is -1 without membership."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    offsets: Sequence[OffsetToCommit]
    retention_ms: int = -1  # -1: offsets.retention.minutes
    producer: TransactionOf | None = None  # that commits the offsets in its transaction
    client: str = UNKNOWN  # in the budget


class GroupShard:
    """The shard of groups; `new_id` returns a random text, used once."""

    def __init__(
        self,
        index: int,
        configs: GroupConfigs,
        budget: ClientBudget,
        offsets_budget: ClientBudget,
        topic_id_of: TopicIdOf,
        wall_ms: Callable[[], int],
        new_id: Callable[[], str],
        statistics: GroupStatistics | None = None,
    ) -> None:
        self.index = index  # number of the partition
        self.statistics = statistics or GroupStatistics()
        self.configs = configs
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = CommittedOffsets(offsets_budget)
        self._topic_id_of = topic_id_of
        self.unreadable_count = 0  # malformed records, which are skipped
        self.first_problem = ""  # the reason of the first of them
        self._budget = budget
        self._offsets_budget = offsets_budget
        self._wall_ms = wall_ms
        self._new_id = new_id
        self._keys = KeyDecoder()
        self._timeouts = Timeouts()
        self._recorded: dict[str, GroupMetadataValue] = {}  # while the shard is loading
        self._persisted: set[str] = set()  # groups with a committed record
        # Records of each group that are appended and not committed yet.
        self._uncommitted: Counter[str] = Counter()
        # Groups that are being deleted, with the number of the deletion, and the callbacks of their
        # requests while these wait.
        self._being_deleted: dict[str, int] = {}
        self._deletion_numbers = count(1)
        self._awaited_deletions: dict[str, DeletionCallback] = {}
        self._is_loaded = False
        self._loaded_at = 0.0  # until then no request was handled
        self._outbox: list[CoordinatorRecord] = []

    # Members

    def join(
        self,
        now: float,
        request: JoinRequest,
        callback: JoinCallback,
        muted_until: MutedUntil = never_muted,
    ) -> JoinAnswer | Write[JoinAnswer | None] | None:
        """Add a member to the group, which is created if its id is new."""
        configs = self.configs
        lowest, highest = configs.min_session_timeout_ms, configs.max_session_timeout_ms
        if not lowest <= request.session_timeout_ms <= highest:
            return JoinAnswer(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
        if len(request.protocols) > MAX_PROTOCOLS:
            return JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        if request.group_id in self._being_deleted:
            return JoinAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, request.member_id)
        group = self.groups.get(request.group_id)
        if group is None and request.member_id:
            return JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
        code = self._check_memory(group, request)
        if code is not NO_ERROR:
            return JoinAnswer(code, request.member_id)
        if group is None:
            group = self._create(request.group_id, request.client)
        else:
            group.used_by(request.client)
        new_id = partial(self._new_member_id, request)
        answer = group.join(now, request, new_id, callback, muted_until)
        return self._written(group, answer, request.client)

    def _check_memory(self, group: ClassicGroup | None, request: JoinRequest) -> ErrorCode:
        """Return the error of a member that may not join, or not with a longer subscription."""
        member = group.member_of(request) if group is not None else None
        if member is None:
            if is_longer(request.instance_id or "", MAX_NEW_ID_BYTES):
                return ErrorCode.INVALID_REQUEST
            if group is None and is_longer(request.group_id, MAX_NEW_ID_BYTES):
                return ErrorCode.INVALID_GROUP_ID
            refusal = self._budget.refused(
                request.client, "a member of group", request.group_id, _size_of(request, group)
            )
        else:
            added = protocols_bytes(request.protocols) - member.protocols_bytes
            refusal = self._budget.refused(
                member.client, "a subscription in group", request.group_id, 0, added
            )
        return NO_ERROR if refusal is None else REFUSED[refusal]

    def _new_member_id(self, request: JoinRequest) -> str:
        drawn = request.new_member_id
        return drawn or member_id_of(request.instance_id or request.client_id, self._new_id())

    def sync(
        self, now: float, request: SyncRequest, callback: SyncCallback
    ) -> SyncAnswer | Write[SyncAnswer | None] | None:
        group = self.groups.get(request.group_id)
        if group is None:
            return SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
        leader = group.members.by_id.get(request.member_id)
        if leader is not None and request.assignments:
            for client, added in group.members.growth_of(request.assignments).items():
                refusal = self._budget.refused(
                    client, "assignments in group", request.group_id, 0, added
                )
                if refusal is not None:
                    return SyncAnswer(REFUSED[refusal])
        answer = group.sync(now, request, callback)
        if isinstance(answer, Persist):
            record = _group_record(group.group_id, answer.record)
            return Write([*self._take(), record], None, answer.on_failed, client=request.client)
        return self._with_outbox(answer, request.client)

    def heartbeat(
        self,
        now: float,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        muted_until: MutedUntil = never_muted,
        principal: str = "",
        client: str = UNKNOWN,
    ) -> ErrorCode:
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return group.heartbeat(
            now, member_id, instance_id, generation, muted_until, principal, client
        )

    def leave(
        self, now: float, group_id: str, members: Iterable[LeavingMember], client: str = UNKNOWN
    ) -> list[ErrorCode] | Write[list[ErrorCode]]:
        """Remove members; return the error of each."""
        group = self.groups.get(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID for _ in members]
        return self._with_outbox(group.leave(now, members), client)

    def drop_join(self, now: float, group_id: str, member_id: str) -> None:
        """Note that the connection of a waiting JoinGroup has ended."""
        if (group := self.groups.get(group_id)) is not None:
            group.drop_join(now, member_id)

    def drop_sync(self, now: float, group_id: str, member_id: str) -> None:
        """Note that the connection of a waiting SyncGroup has ended."""
        if (group := self.groups.get(group_id)) is not None:
            group.drop_sync(now, member_id)

    # Offsets

    def commit(
        self, now: float, now_ms: int, request: CommitRequest
    ) -> ErrorCode | Write[list[ErrorCode]] | list[ErrorCode]:
        """Commit offsets; return the error of each, or one for all."""
        code = self._check_commit(now, request)
        if code is not NO_ERROR:
            return code
        if not self.offsets.has_room(len(request.offsets)):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        most_bytes = self.configs.offset_metadata_max_bytes
        retention_ms = request.retention_ms
        expires_ms = min(now_ms + retention_ms, MAX_TIMESTAMP_MS) if retention_ms >= 0 else -1
        codes: list[ErrorCode] = []
        records: list[CoordinatorRecord] = []
        memory, client = _CommitMemory(self.offsets, self._offsets_budget, request), request.client
        for each in request.offsets:
            if len(each.metadata) > most_bytes:
                codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            key = OffsetKey(request.group_id, each.topic, each.partition)
            value = encode_offset_value(
                OffsetValue(
                    each.offset, each.leader_epoch, each.metadata, now_ms, expires_ms, each.topic_id
                )
            )
            code = memory.check(key, len(value))
            codes.append(code)
            if code is NO_ERROR:
                records.append(CoordinatorRecord(encode_key(key), value, key, False, client))
        self.statistics.committed_count += len(records)
        return Write(records, codes, None, request.producer, client) if records else codes

    def _check_commit(self, now: float, request: CommitRequest) -> ErrorCode:
        """Return the error of a client that may not commit for the group.

        A commit in a transaction may name no member also if the group has members. It is no
        heartbeat, and may come during a rebalance, as in Kafka.
        """
        if request.group_id in self._being_deleted:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        is_transactional = request.producer is not None
        group = self.groups.get(request.group_id)
        if group is None:
            if request.generation < 0:
                is_new = is_longer(request.group_id, MAX_NEW_ID_BYTES) and not (
                    self.offsets.has_group(request.group_id)
                )
                return ErrorCode.INVALID_GROUP_ID if is_new else NO_ERROR
            if self.offsets.has_group(request.group_id):
                return ErrorCode.UNKNOWN_MEMBER_ID
            return (
                ErrorCode.ILLEGAL_GENERATION if is_transactional else ErrorCode.GROUP_ID_NOT_FOUND
            )
        if request.generation < 0 and group.is_empty:
            return NO_ERROR
        if request.generation >= 0 or request.member_id or request.instance_id is not None:
            code = group.check(request.member_id, request.instance_id, request.generation)
        else:
            code = NO_ERROR if is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
        if code is NO_ERROR and not is_transactional:
            group.hear(now, request.member_id)
            if group.state is GroupState.COMPLETING_REBALANCE:
                return ErrorCode.REBALANCE_IN_PROGRESS
        return code

    def delete_offsets(
        self, group_id: str, places: Iterable[tuple[str, int]], client: str = UNKNOWN
    ) -> ErrorCode | Write[list[ErrorCode]] | list[ErrorCode]:
        """Delete offsets of topics that no member consumes; return the error of each."""
        if group_id in self._being_deleted:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        group = self.groups.get(group_id)
        if group is None and not self.offsets.has_group(group_id):
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group is not None and not group.is_empty and group.protocol_type != CONSUMER:
            return ErrorCode.NON_EMPTY_GROUP
        subscribed = group.subscribed_topics if group is not None else frozenset()
        codes: list[ErrorCode] = []
        records: list[CoordinatorRecord] = []
        for topic, partition in places:
            if subscribed is None or topic in subscribed:
                codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            codes.append(NO_ERROR)
            records += map(_tombstone, self.offsets.delete_offsets(group_id, topic, [partition]))
        self.statistics.deleted_count += len(records)
        return Write(records, codes, client=client) if records else codes

    # Deletion

    def delete_group(
        self, group_id: str, ended: DeletionCallback = _ignore, client: str = UNKNOWN
    ) -> ErrorCode | Write[ErrorCode | None] | None:
        """Delete a group without members; `ended` gets the answer if it takes several batches."""
        if group_id in self._being_deleted:
            if group_id in self._awaited_deletions:
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            self._awaited_deletions[group_id] = ended
            return None
        group = self.groups.get(group_id)
        if group is None and not self.offsets.has_group(group_id):
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group is not None and not group.is_empty:
            return ErrorCode.NON_EMPTY_GROUP
        if group is not None:
            group.forget_pending()
        if not self.offsets.is_large(group_id):
            return Write(self._deletion_of(group_id), NO_ERROR, client=client)
        self._awaited_deletions[group_id] = ended
        metadata = GroupMetadataValue(is_being_deleted=True)
        value = encode_group_value(metadata, DELETED_GROUP_VERSION)
        begun = _group_record(group_id, RecordedGeneration(value, metadata.generation, {}))
        return Write(
            [begun], None, lambda code, _: self.answer_deletion(group_id, code), client=client
        )

    def _deletion_of(self, group_id: str) -> list[CoordinatorRecord]:
        records = [_tombstone(key) for key in self.offsets.delete_group(group_id)]
        self.statistics.deleted_count += len(records)
        return [*records, _group_record(group_id, None)]

    def answer_deletion(self, group_id: str, code: ErrorCode) -> None:
        """Answer the request for a deletion; one that has begun will be tried again."""
        ended = self._awaited_deletions.pop(group_id, None)
        if ended is not None:
            ended(code)

    @property
    def being_deleted(self) -> Collection[str]:
        """Groups whose tombstones must be written."""
        return self._being_deleted

    def deletion_number(self, group_id: str) -> int | None:
        """Return a number of the deletion that has begun; None if none has, or it has ended."""
        return self._being_deleted.get(group_id)

    def _note_deletion(self, group_id: str) -> None:
        if group_id not in self._being_deleted:
            self._being_deleted[group_id] = next(self._deletion_numbers)

    def deletion_pieces(self, group_id: str) -> Iterator[list[CoordinatorRecord]]:
        """Yield the tombstones of a group that is being deleted; its own is the last.

        Each piece may be appended only if those before it were.
        """
        for places in self.offsets.place_pieces(group_id):
            self.statistics.deleted_count += len(places)
            yield [_tombstone(encode_key(OffsetKey(group_id, *place))) for place in places]
        yield [_group_record(group_id, None)]

    # Offsets that are not valid any longer

    def delete_stale(
        self, group_id: str, places: Iterable[Place] | None = None
    ) -> Write[None] | None:
        """Return tombstones for the group's offsets of topics that were deleted.

        Of all its offsets, or of those in one piece of them (`CommittedOffsets.place_pieces`).
        """
        if group_id in self._being_deleted:
            return None
        keys = self.offsets.delete_stale(group_id, self._topic_id_of, places)
        self.statistics.deleted_count += len(keys)
        return Write([_tombstone(key) for key in keys], None, client=COORDINATOR) if keys else None

    def expire(
        self, group_id: str, now_ms: int, places: Sequence[Place] | None = None
    ) -> Write[None] | None:
        """Return tombstones for what has expired of a group: offsets, and at last the group.

        Of all its offsets, or of those in one piece of them (`CommittedOffsets.place_pieces`).
        """
        if group_id in self._being_deleted:
            return None
        group = self.groups.get(group_id)
        keys, is_all = self.offsets.expire(
            group_id,
            _retention_of(group),
            now_ms=now_ms,
            retention_ms=self.configs.offsets_retention_ms,
            places=places,
        )
        records = [_tombstone(key) for key in keys]
        self.statistics.expired_count += len(keys)
        is_all = is_all or not self.offsets.has_group(group_id)
        if is_all and (group is None or (group.is_empty and not group.pending)):
            if group_id in self._persisted:
                records.append(_group_record(group_id, None))
            elif group is not None and not self._uncommitted[group_id]:
                self._forget(group)
        return Write(records, None, client=COORDINATOR) if records else None

    def group_id_pieces(self) -> Iterator[list[str]]:
        """Yield all groups, in pieces; groups may be created and deleted between two steps."""
        known = dict.fromkeys(self.groups)
        yield list(known)
        for groups in self.offsets.groups():
            yield [group_id for group_id in groups if group_id not in known]

    # The shard's side of the runtime

    @property
    def next_due(self) -> float:
        return self._timeouts.next_due

    def due(
        self, now: float, now_ms: int, is_over: Callable[[], bool] = is_never_over
    ) -> list[CoordinatorRecord]:
        self._timeouts.run(now, is_over)
        return self._take()

    def appended(self, records: Iterable[CoordinatorRecord]) -> None:
        for record in records:
            key = record.decoded_key
            if isinstance(key, OffsetKey):
                self.offsets.appended(key, record.value)
            elif isinstance(key, GroupKey):
                self._uncommitted[key.group] += 1
                if key.group in self._awaited_deletions:
                    self._note_deletion(key.group)

    def refused(self, records: Iterable[CoordinatorRecord], now: float) -> None:
        """Write the group again, in its state of that time, if it has become empty.

        The record itself is not written again: it must not follow a newer one.
        """
        for record in records:
            if isinstance(record.decoded_key, GroupKey) and record.value is not None:
                group = self.groups.get(record.decoded_key.group)
                if group is not None and group.is_empty:
                    self._timeouts.at(now + WRITE_RETRY_S, partial(self._write_again, group))

    def _write_again(self, group: ClassicGroup, now: float) -> None:
        if self.groups.get(group.group_id) is group and group.group_id not in self._being_deleted:
            group.write_empty()

    def replay(self, record: CoordinatorRecord, now: float) -> Steps[None] | None:
        key = record.decoded_key
        try:
            if key is None:
                key = self._keys.decode(record.key)
            if isinstance(key, OffsetKey):
                self.offsets.replay(key, record.value, _client_of(record))
            elif isinstance(key, GroupKey):
                return self._replay_group(key.group, record, now)
        except MalformedRecordError as error:
            self._skip(error)
        return None

    def appended_in_transaction(
        self, records: Sequence[CoordinatorRecord], producer_id: int
    ) -> None:
        self.appended(records)

    def replay_transactional(
        self, record: CoordinatorRecord, producer_id: int, now: float
    ) -> Steps[None] | None:
        """Let the offset of the record wait for a marker; only offsets are in transactions."""
        try:
            key = record.decoded_key or self._keys.decode(record.key)
            if not isinstance(key, OffsetKey):
                return self.replay(record, now)
            self.offsets.replay_transactional(key, record.value, producer_id, _client_of(record))
        except MalformedRecordError as error:
            self._skip(error)
        return None

    def replay_marker(self, marker: TransactionMarker, now: float) -> Steps[None] | None:
        return self.offsets.replay_marker(marker.producer_id, is_commit=marker.is_commit)

    def replay_appended(
        self, records: Sequence[CoordinatorRecord], monotonic: Callable[[], float]
    ) -> None:
        for record in records:
            key = record.decoded_key
            if isinstance(key, OffsetKey):
                self.offsets.replay_appended(key, record.value, _client_of(record))
            else:
                self.appended((record,))
                self.replay(record, monotonic())

    def _skip(self, error: MalformedRecordError) -> None:
        self.unreadable_count += 1
        self.first_problem = self.first_problem or str(error)

    def _replay_group(
        self, group_id: str, record: CoordinatorRecord, now: float
    ) -> Steps[None] | None:
        value = record.value
        if self._is_loaded:
            written = record.decoded_value
            if not isinstance(written, RecordedGeneration):
                written = None if value is None else decode_generation(value)
            self._group_committed(group_id, written, now)
        elif value is None:
            self._persisted.discard(group_id)
            self._recorded.pop(group_id, None)
        elif len(value) > LONG_VALUE_BYTES:
            return self._replay_long(group_id, value)
        else:
            self._take_recorded(group_id, decode_group_value(value))
        return None

    async def _replay_long(self, group_id: str, value: bytes) -> None:
        """Replay a group of many members while the shard is loading."""
        try:
            metadata = await decode_long_group_value(value)
        except MalformedRecordError as error:
            self._skip(error)
        else:
            self._take_recorded(group_id, metadata)

    def _take_recorded(self, group_id: str, metadata: GroupMetadataValue) -> None:
        self._persisted.add(group_id)
        self._recorded[group_id] = metadata

    def _group_committed(
        self, group_id: str, recorded: RecordedGeneration | None, now: float
    ) -> None:
        """Apply a record of this coordinator; None: the group's tombstone."""
        if recorded is None:
            self._persisted.discard(group_id)
        else:
            self._persisted.add(group_id)
        self._uncommitted[group_id] -= 1
        is_last = self._uncommitted[group_id] <= 0
        if is_last:
            del self._uncommitted[group_id]
        group = self.groups.get(group_id)
        if group is not None and recorded is not None:
            group.committed(now, recorded)
        elif is_last and group is not None and group.is_empty and not group.pending:
            self._forget(group)
        # Records that follow are those of another attempt, or of another deletion.
        if recorded is None and is_last and group_id in self._being_deleted:
            del self._being_deleted[group_id]
            self.answer_deletion(group_id, NO_ERROR)

    async def restore(self, now: float) -> None:
        for group_id, metadata in self._recorded.items():
            if metadata.is_being_deleted:
                self._note_deletion(group_id)
            else:
                await self._create(group_id).restore(now, metadata, self._loaded_since)
            if len(metadata.members) > FORGOTTEN_ROWS:
                await emptied(metadata.members)
            await pause()
        await emptied(self._recorded)
        await self._keys.emptied()

    def loaded(self, now: float, now_ms: int) -> None:
        self._is_loaded = True
        self._loaded_at = now

    def _loaded_since(self) -> float:
        return self._loaded_at

    async def unload(self) -> None:
        timeouts = self._timeouts.close()  # first, because it makes cancelling cheap
        while self.groups:
            group = next(reversed(self.groups.values()))  # from the front, a dict is slow
            await group.close(ErrorCode.NOT_COORDINATOR)
            self._forget(group)
            await pause()
        while self._awaited_deletions:
            self.answer_deletion(next(iter(self._awaited_deletions)), ErrorCode.NOT_COORDINATOR)
        self._being_deleted.clear()
        await timeouts
        await self.offsets.emptied()
        await emptied(self._recorded)
        await emptied(self._persisted)
        await emptied(self._uncommitted)

    def _create(self, group_id: str, client: str = UNKNOWN) -> ClassicGroup:
        group = self.groups[group_id] = ClassicGroup(
            group_id,
            self.configs.limits,
            self._budget,
            self._timeouts,
            self._wall_ms,
            partial(self._write, group_id),
            self.statistics.rebalance_times,
            client,
        )
        return group

    def _forget(self, group: ClassicGroup) -> None:
        del self.groups[group.group_id]
        group.forget()

    def _write(self, group_id: str, recorded: RecordedGeneration) -> None:
        self._outbox.append(_group_record(group_id, recorded))

    def _take(self) -> list[CoordinatorRecord]:
        records, self._outbox = self._outbox, []
        return records

    def _with_outbox(self, answer: A, client: str) -> A | Write[A]:
        return Write(self._take(), answer, client=client) if self._outbox else answer

    def _written(
        self, group: ClassicGroup, answer: JoinAnswer | Persist | None, client: str
    ) -> JoinAnswer | Write[JoinAnswer | None] | None:
        if isinstance(answer, Persist):
            record = _group_record(group.group_id, answer.record)
            return Write([*self._take(), record], answer.answer, client=client)
        return self._with_outbox(answer, client)


class _CommitMemory:
    """Memory that the offsets of one commit need, in addition."""

    def __init__(
        self, offsets: CommittedOffsets, budget: ClientBudget, request: CommitRequest
    ) -> None:
        self._offsets = offsets
        self._budget = budget
        self._request = request
        self._admitted_bytes = self._grown_bytes = 0  # sums of the new offsets
        if not offsets.has_group(request.group_id):
            self._admitted_bytes = offsets_group_bytes(request.group_id)

    def check(self, key: OffsetKey, value_bytes: int) -> ErrorCode:
        """Return the error of an offset for which there is no memory; not for known offsets."""
        request = self._request
        if request.producer is not None:
            added = Added(request.client, waiting_bytes(key.group, value_bytes), 0)
        else:
            found = self._offsets.added(key, value_bytes, request.client)
            if found is None:
                return NO_ERROR
            added = found
        admitted, grown = added.admitted_bytes, added.grown_bytes
        if admitted:
            admitted, grown = admitted + self._admitted_bytes, grown + self._grown_bytes
        refusal = self._budget.refused(
            added.client, "an offset of group", key.group, admitted, grown
        )
        if refusal is not None:
            return _NO_MEMORY[refusal]
        if admitted:
            self._admitted_bytes, self._grown_bytes = admitted, grown
        return NO_ERROR


# Error of an offset for which there is no memory. Clients retry the second, and not the first.
_NO_MEMORY: Final = {
    Refusal.SHARE: ErrorCode.POLICY_VIOLATION,
    Refusal.FULL: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


def _client_of(record: CoordinatorRecord) -> str:
    """Return the client that has committed an offset; UNKNOWN if it was loaded."""
    client = record.decoded_value
    return client if isinstance(client, str) else UNKNOWN


def _group_record(group_id: str, recorded: RecordedGeneration | None) -> CoordinatorRecord:
    key = GroupKey(group_id)
    value = None if recorded is None else recorded.value
    return CoordinatorRecord(encode_key(key), value, key, decoded_value=recorded)


def _size_of(request: JoinRequest, group: ClassicGroup | None) -> int:
    """Return the memory of a new member, and of its group if that is new."""
    ids = (request.client_id, request.instance_id or "", request.new_member_id)
    texts = 2 * sum(map(text_bytes, ids))  # as text, and in the head of the member's record
    own = 0 if group is not None else group_bytes(request.group_id)
    return own + MEMBER_BYTES + texts + protocols_bytes(request.protocols)


def _tombstone(key: bytes) -> CoordinatorRecord:
    return CoordinatorRecord(key, None, decode_key(key))


def _retention_of(group: ClassicGroup | None) -> OffsetRetention | None:
    if group is None:
        return OffsetRetention()
    return offset_retention(
        group.protocol_type,
        is_empty=group.is_empty,
        is_stable=group.state is GroupState.STABLE,
        state_timestamp_ms=group.state_timestamp_ms if group.state_timestamp_ms >= 0 else None,
        subscribed=group.subscribed_topics,
    )
