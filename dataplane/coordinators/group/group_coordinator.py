"""The groups of one worker: the runtime of `__consumer_offsets`, retention, and deleted topics.

    group id -> partition of `__consumer_offsets` -> shard, if this worker leads the partition

A background task removes what has expired, at intervals of `offsets.retention.check.interval.ms`,
and the offsets of topics that were deleted: of each shard after it was loaded, because a topic may
have been deleted while no worker led the partition, and of all shards after a topic was deleted. It
looks at one group at a time, and lets other tasks run in between.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol, TypeVar

import trio

from dataplane.coordinators.group.group_shard import GroupConfigs, GroupShard
from dataplane.coordinators.group.group_statistics import GroupStatistics
from dataplane.coordinators.group.members import GroupMemory
from dataplane.coordinators.group.partitioning import partition_of
from dataplane.coordinators.runtime import CoordinatorRuntime, Partitions, RuntimeParts
from dataplane.coordinators.shard import Write
from metaquorum.config.resolution import Configs
from metaquorum.controller.features import check_level
from metaquorum.controller.internal_topics import GROUPS_LEVEL
from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS
from metaquorum.metadata.records import METADATA_VERSION
from metaquorum.runtime.interfaces import sleep
from wire.primitives.errors import ErrorCode, KafkaError
from wire.primitives.types import ZERO_UUID, Uuid

T = TypeVar("T")

# Groups between two checks of the time slice.
GROUPS_PER_PIECE: Final = 16
# Longest group id in bytes of UTF-8: the records have 16 bits for its length.
MAX_GROUP_ID_BYTES: Final = 32_767


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
        self.memory = GroupMemory(lambda: configs.memory_bytes)
        self.statistics = GroupStatistics()
        self._parts = parts
        self._new_id = new_id
        self._image: MetadataImage | None = None  # with `_count` partitions of the topic
        self._count = 0
        # Shards that may have offsets of deleted topics.
        self._unchecked: dict[GroupShard, None] = {}
        self._has_unchecked = trio.Event()
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
            self.memory,
            self._topic_id_of,
            self._parts.clock.now_ms,
            self._new_id,
            self.statistics,
        )

    def _loaded(self, shard: GroupShard) -> None:
        self.statistics.load_times.record(self.runtime.load_s, self._parts.clock.monotonic())
        self._check([shard])

    def _topic_id_of(self, name: str) -> Uuid:
        topic = self._parts.image.topic(name)
        return ZERO_UUID if topic is None else topic.topic_id

    def partition_of(self, group_id: str) -> int:
        """Return the partition of a group.

        Raises KafkaError: INVALID_GROUP_ID, UNSUPPORTED_VERSION if the cluster's metadata.version
        is too low, COORDINATOR_NOT_AVAILABLE before the topic exists.
        """
        if len(group_id) * 4 > MAX_GROUP_ID_BYTES and len(group_id.encode()) > MAX_GROUP_ID_BYTES:
            raise KafkaError(
                ErrorCode.INVALID_GROUP_ID,
                f"the group id has more than {MAX_GROUP_ID_BYTES} bytes",
            )
        image = self._parts.image
        if image is not self._image:
            self._count, self._image = _partition_count(image), image
        return partition_of(group_id, self._count)

    def new_member_id(self, name: str) -> str:
        """Return a member id never used before; `name`: the client id or the instance id."""
        return f"{name}-{self._new_id()}"

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

    @property
    def shards(self) -> Mapping[int, GroupShard]:
        """Active shards, by partition."""
        return self.runtime.active

    @property
    def is_loading(self) -> bool:
        """Whether a partition that this worker leads is still loading."""
        return self.runtime.is_loading

    # Background

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Follow the leadership of partitions, and deletions of topics."""
        await self.runtime.publish(delta, image)
        if any(before is not None and after is None for before, after in delta.topics()):
            self._check(self.shards.values())

    async def run(self) -> None:
        self.runtime.look()  # at what was assigned before
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.runtime.run)
            nursery.start_soon(self._keep_expiring)
            nursery.start_soon(self._keep_deleting)

    def close(self) -> None:
        """Answer everything that waits with NOT_COORDINATOR, because the worker stops."""
        self.runtime.close()

    async def _keep_expiring(self) -> None:
        while True:
            await sleep(self._parts.clock, self.configs.retention_check_s)
            for shard in self.shards.values():
                await self._each_group(shard, self._expire)

    async def _keep_deleting(self) -> None:
        while True:
            await self._has_unchecked.wait()
            await self._parts.wait_applied()  # a deletion that is being published is not in force
            while self._unchecked:
                shard = next(iter(self._unchecked))
                del self._unchecked[shard]
                await self._each_group(shard, GroupShard.delete_stale)
            self._has_unchecked = trio.Event()

    def _check(self, shards: Iterable[GroupShard]) -> None:
        """Let the background task look for offsets of deleted topics."""
        self._unchecked.update(dict.fromkeys(shards))
        self._has_unchecked.set()

    def _expire(self, shard: GroupShard, group_id: str) -> Write[None] | None:
        return shard.expire(group_id, self._parts.clock.now_ms())

    async def _each_group(
        self,
        shard: GroupShard,
        operation: Callable[[GroupShard, str], Write[None] | None],
    ) -> None:
        """Write the records of `operation` for each group of the shard, as long as it is active."""
        for group_ids in shard.group_id_pieces():
            for first in range(0, len(group_ids), GROUPS_PER_PIECE):
                await self._parts.slicer.pause()
                await trio.lowlevel.checkpoint()
                if self.runtime.active.get(shard.index) is not shard:
                    return
                for group_id in group_ids[first : first + GROUPS_PER_PIECE]:
                    self.runtime.write(shard.index, operation(shard, group_id))


def _partition_count(image: MetadataImage) -> int:
    check_level(image, METADATA_VERSION, GROUPS_LEVEL, "a consumer group")
    topic = image.topic(CONSUMER_OFFSETS)
    if topic is None:
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{CONSUMER_OFFSETS} does not exist yet"
        )
    return len(topic.partitions)
