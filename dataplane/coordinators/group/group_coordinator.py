"""The groups of one worker: the runtime of `__consumer_offsets`, retention, and deleted topics.

    group id -> partition of `__consumer_offsets` -> shard, if this worker leads the partition

Background tasks write tombstones:

    of what has expired              at intervals of `offsets.retention.check.interval.ms`
    of offsets of deleted topics     of a shard after it was loaded, because a topic may have been
                                     deleted while no worker led the partition; of all shards after
                                     a topic was deleted
    of groups with many offsets      after DeleteGroups, and after the load of a shard whose last
                                     coordinator has not completed it

They look at one piece of a group at a time, let other tasks run in between, and have at most
MAX_WRITES uncommitted writes. If one fails, they try again: with the next check of the interval, or
after a time that doubles up to MAX_RETRY_S.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

import trio

from metaquorum.config.resolution import Configs
from metaquorum.dataplane.coordinators.background_writes import BackgroundWrites, PendingChecks
from metaquorum.dataplane.coordinators.budget_log import BudgetLog
from metaquorum.dataplane.coordinators.client_budget import is_longer
from metaquorum.dataplane.coordinators.group.group_shard import GroupConfigs, GroupShard
from metaquorum.dataplane.coordinators.group.group_statistics import GroupStatistics
from metaquorum.dataplane.coordinators.group.requests import member_id_of
from metaquorum.dataplane.coordinators.group.transactional_offsets import Place
from metaquorum.dataplane.coordinators.partitioning import partition_of
from metaquorum.dataplane.coordinators.runtime import CoordinatorRuntime, Partitions, RuntimeParts
from metaquorum.dataplane.coordinators.shard import Write
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.dataplane.scheduling.time_slices import pause
from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS
from metaquorum.metadata.records import METADATA_VERSION
from metaquorum.quorum.controller.features import check_level
from metaquorum.quorum.controller.internal_topics import GROUPS_LEVEL
from metaquorum.runtime.interfaces import sleep
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.types import ZERO_UUID, Uuid

log = logging.getLogger(__name__)

T = TypeVar("T")

# Groups and offsets between two checks of the time slice.
PLACES_PER_SLICE_CHECK: Final = 64
# Longest group id and member id in bytes of UTF-8: the records have 16 bits for their lengths.
MAX_ID_BYTES: Final = 32_767


class CoordinatorParts(RuntimeParts, Protocol):
    """Parts of the worker that the coordinator uses."""

    @property
    def image(self) -> MetadataImage:
        """Metadata image that all parts of this worker have applied."""


class CoordinatorConfigs:
    """Configs in force, changed in place; `groups` is shared by all shards."""

    def __init__(self) -> None:
        """Create the configs with Kafka's defaults."""
        self.groups = GroupConfigs()
        self.memory_bytes = 256 << 20
        self.offsets_memory_bytes = 512 << 20
        self.retention_check_s = 600.0
        self.commit_timeout_s = 5.0
        self.load_bytes = 5 << 20

    def update(self, configs: Configs) -> None:
        """Take the values of the worker's configs."""
        groups, integer = self.groups, configs.integer
        groups.limits.initial_rebalance_delay_s = integer("group.initial.rebalance.delay.ms") / 1000
        groups.limits.max_size = integer("group.max.size")
        groups.min_session_timeout_ms = integer("group.min.session.timeout.ms")
        groups.max_session_timeout_ms = integer("group.max.session.timeout.ms")
        groups.offsets_retention_ms = integer("offsets.retention.minutes") * 60_000
        groups.offset_metadata_max_bytes = integer("offset.metadata.max.bytes")
        self.memory_bytes = integer("group.memory.max.bytes")
        self.offsets_memory_bytes = integer("offsets.memory.max.bytes")
        self.retention_check_s = integer("offsets.retention.check.interval.ms") / 1000
        self.commit_timeout_s = integer("offsets.commit.timeout.ms") / 1000
        self.load_bytes = integer("offsets.load.buffer.size")


class GroupCoordinator:
    """Coordinator of the groups whose partition this worker leads; a publisher of the loader."""

    def __init__(
        self,
        parts: CoordinatorParts,
        partitions: Partitions,
        configs: CoordinatorConfigs,
        new_id: Callable[[], str],
    ) -> None:
        """Create the coordinator; `new_id` returns the random part of a member id."""
        self.configs = configs
        budgets = BudgetLog(parts.clock.monotonic)
        self.budget = budgets.budget("group.memory.max.bytes", lambda: configs.memory_bytes)
        self.offsets_budget = budgets.budget(
            "offsets.memory.max.bytes", lambda: configs.offsets_memory_bytes
        )
        self.statistics = GroupStatistics()
        self._parts = parts
        self._new_id = new_id
        self._image: MetadataImage | None = None  # with `_count` partitions of the topic
        self._count = 0
        # Shards that may have offsets of deleted topics, and those with groups to delete.
        self._unchecked: PendingChecks[GroupShard] = PendingChecks(parts.timers)
        self._deleting: PendingChecks[GroupShard] = PendingChecks(parts.timers)
        self.runtime = CoordinatorRuntime(
            CONSUMER_OFFSETS,
            parts,
            partitions,
            self._make_shard,
            load_bytes=configs.load_bytes,
            time_limit_s=lambda: configs.commit_timeout_s,
            on_loaded=self._loaded,
        )

    def _make_shard(self, index: int) -> GroupShard:
        return GroupShard(
            index,
            self.configs.groups,
            self.budget,
            self.offsets_budget,
            self._topic_id_of,
            self._parts.clock.now_ms,
            self._new_id,
            self.statistics,
        )

    def _loaded(self, shard: GroupShard) -> None:
        self.statistics.load_times.record(self.runtime.load_s, self._parts.clock.monotonic())
        if shard.unreadable_count:
            log.warning(
                "skipped %d malformed records of %s-%d; the first: %s",
                shard.unreadable_count,
                CONSUMER_OFFSETS,
                shard.index,
                shard.first_problem,
            )
        self._unchecked.add(shard)
        if shard.being_deleted:
            self._deleting.add(shard)

    def _topic_id_of(self, name: str) -> Uuid:
        topic = self._parts.image.topic(name)
        return ZERO_UUID if topic is None else topic.topic_id

    def partition_of(self, group_id: str) -> int:
        """Return the partition of a group.

        Raises KafkaError: INVALID_GROUP_ID, UNSUPPORTED_VERSION if the cluster's metadata.version
        is too low, COORDINATOR_NOT_AVAILABLE before the topic exists.
        """
        if is_longer(group_id, MAX_ID_BYTES):
            raise KafkaError(
                ErrorCode.INVALID_GROUP_ID, f"the group id has more than {MAX_ID_BYTES} bytes"
            )
        image = self._parts.image
        if image is not self._image:
            self._count, self._image = _partition_count(image), image
        return partition_of(group_id, self._count)

    def new_member_id(self, name: str) -> str:
        """Return a member id never used before; `name`: the client id or the instance id."""
        return member_id_of(name, self._new_id())

    def shard(self, group_id: str) -> GroupShard:
        """Return the shard of a group. Raises KafkaError unless this worker coordinates it."""
        return self.runtime.shard(self.partition_of(group_id))

    def call(
        self,
        group_id: str,
        operation: Callable[[GroupShard], T | Write[T | None] | None],
        done: Callable[[T], object],
        failed: Callable[[ErrorCode], object],
    ) -> None:
        """Run an operation on the group's shard: see `CoordinatorRuntime.call`."""
        self.runtime.call(self.partition_of(group_id), operation, done, failed)

    def append_marker(
        self, index: int, marker: TransactionMarker, done: Callable[[ErrorCode], object]
    ) -> None:
        """End the offsets of a transaction in a partition of the topic; call `done` once it has."""
        try:
            self.runtime.append_marker(index, marker, partial(done, ErrorCode.NONE), done)
        except KafkaError as error:
            done(error.code)

    def delete_group(
        self, group_id: str, ended: Callable[[ErrorCode], object], client: str
    ) -> None:
        """Delete a group, and call `ended` with the outcome. Raises KafkaError."""
        shard = self.shard(group_id)
        self.call(group_id, lambda each: each.delete_group(group_id, ended, client), ended, ended)
        if group_id in shard.being_deleted:
            self._deleting.add(shard)

    @property
    def shards(self) -> Mapping[int, GroupShard]:
        """Active shards, by partition."""
        return self.runtime.active

    @property
    def is_loading(self) -> bool:
        """Whether a partition that this worker leads is still loading."""
        return self.runtime.is_loading

    def group_ids_of(self, client: str) -> Iterator[list[str]]:
        """Yield the groups that a client has created, in pieces."""
        for shard in list(self.shards.values()):
            for piece in shard.group_id_pieces():
                yield [
                    each
                    for each in piece
                    if (group := shard.groups.get(each)) is not None and group.client == client
                ]

    def offset_groups_of(self, client: str) -> Iterator[list[str]]:
        """Yield the groups whose first offset a client has committed, in pieces."""
        for shard in list(self.shards.values()):
            for piece in shard.offsets.groups():
                yield [each for each in piece if shard.offsets.client_of(each) == client]

    # Background

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Follow the leadership of partitions, and deletions of topics."""
        await self.runtime.publish(delta, image)
        if any(before is not None and after is None for before, after in delta.topics()):
            for shard in self.shards.values():
                self._unchecked.add(shard)

    async def run(self) -> None:
        self.runtime.look()  # at what was assigned before
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.runtime.run)
            nursery.start_soon(self._keep_expiring)
            nursery.start_soon(self._keep_checking)
            nursery.start_soon(self._keep_deleting)

    def close(self) -> None:
        """Answer everything that waits with NOT_COORDINATOR, because the worker stops."""
        self.runtime.close()

    async def _keep_expiring(self) -> None:
        while True:
            await sleep(self._parts.clock, self.configs.retention_check_s)
            for shard in self.shards.values():
                await self._each_group(shard, self._expire)

    async def _keep_checking(self) -> None:
        while True:
            shard = await self._unchecked.next()
            await self._parts.wait_applied()  # a deletion that is being published is not in force
            is_done = await self._each_group(shard, GroupShard.delete_stale)
            self._checked(self._unchecked, shard, is_done)

    async def _keep_deleting(self) -> None:
        while True:
            shard = await self._deleting.next()
            is_done = await self._delete_groups(shard)
            self._checked(self._deleting, shard, is_done)

    def _checked(self, checks: PendingChecks[GroupShard], shard: GroupShard, is_done: bool) -> None:
        """Try again if a write has failed and this worker still coordinates the groups."""
        if is_done or not self._is_active(shard):
            checks.ended(shard)
        else:
            checks.retry(shard)

    def _expire(
        self, shard: GroupShard, group_id: str, places: Sequence[Place]
    ) -> Write[None] | None:
        return shard.expire(group_id, self._parts.clock.now_ms(), places)

    async def _each_group(
        self,
        shard: GroupShard,
        operation: Callable[[GroupShard, str, Sequence[Place]], Write[None] | None],
    ) -> bool:
        """Write the records of `operation` for each piece of each group of the shard.

        Return False if a write has failed. Ends early then, or when the shard is not active.
        """
        writes = BackgroundWrites(self.runtime, shard.index)
        left = PLACES_PER_SLICE_CHECK
        for group_ids in shard.group_id_pieces():
            for group_id in group_ids:
                for places in shard.offsets.place_pieces(group_id):
                    left -= 1 + len(places)
                    if left <= 0:
                        left = PLACES_PER_SLICE_CHECK
                        await self._let_others_run()
                    if not await writes.wait_room() or not self._is_active(shard):
                        return not writes.has_failed
                    outcome = operation(shard, group_id, places)
                    if outcome is not None:
                        writes.write(outcome.records)
        return await writes.wait_all()

    async def _delete_groups(self, shard: GroupShard) -> bool:
        """Write the tombstones of the groups that are being deleted; return False if one failed.

        A deletion may end meanwhile, if the records of an earlier attempt were late: the offsets
        of the group are then new ones.
        """
        is_done = True
        for group_id in list(shard.being_deleted):
            number = shard.deletion_number(group_id)
            writes = BackgroundWrites(self.runtime, shard.index)
            for records in shard.deletion_pieces(group_id):
                await self._let_others_run()
                if not await writes.wait_room() or not self._is_active(shard):
                    break
                if shard.deletion_number(group_id) != number:
                    break
                writes.write(records)
            if not await writes.wait_all():
                shard.answer_deletion(group_id, writes.failure)
                is_done = False
        return is_done

    def _is_active(self, shard: GroupShard) -> bool:
        try:
            return self.runtime.shard(shard.index) is shard
        except KafkaError:
            return False

    async def _let_others_run(self) -> None:
        await pause()
        await trio.lowlevel.checkpoint()


def _partition_count(image: MetadataImage) -> int:
    check_level(image, METADATA_VERSION, GROUPS_LEVEL, "a consumer group")
    topic = image.topic(CONSUMER_OFFSETS)
    if topic is None:
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{CONSUMER_OFFSETS} does not exist yet"
        )
    return len(topic.partitions)
