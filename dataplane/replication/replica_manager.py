"""Partitions of this worker, created, assigned and removed by the metadata log."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final

import trio

from metaquorum.config.definition import Scope
from metaquorum.config.resolution import WorkerLayers
from metaquorum.dataplane.config.topic import TopicConfig
from metaquorum.dataplane.config.worker import WorkerConfigs
from metaquorum.dataplane.log.dirs.dir_steps import UnresponsiveError
from metaquorum.dataplane.log.dirs.log_dir import LogDir, NewPartition
from metaquorum.dataplane.log.dirs.log_dirs import End, LogDirs
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments.files import DirectoryFailedError, UnreadableError
from metaquorum.dataplane.partition.partition import NO_TRAFFIC, NotLeaderOrFollowerError, Partition
from metaquorum.dataplane.replication.isr_manager import IsrManager
from metaquorum.dataplane.replication.truncation_ledger import LostLog
from metaquorum.metadata.image import MetadataDelta, MetadataImage, PartitionImage, TopicImage
from metaquorum.metadata.internal_topics import is_internal
from metaquorum.runtime import Clock, StorageError
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.types import ZERO_UUID, Uuid

log = logging.getLogger(__name__)

# Partitions created or removed between checkpoints of the event loop; each takes about 0.1 ms of
# disk calls.
SLICE_PARTITIONS: Final = 32
# Least seconds between log lines for transient failures: a full disk fails every request.
FAILURE_LOG_SECONDS: Final = 10.0
MOST_NAMED: Final = 5  # partitions in one log line
_NONE: Final[frozenset[int]] = frozenset()


class ReplicaManager:
    """Partitions of this worker, looked up by requests; a publisher of the metadata loader."""

    def __init__(
        self,
        worker_id: int,
        clock: Clock,
        random: Random,
        configs: WorkerConfigs,
        log_dirs: LogDirs,
        replication: IsrManager,
    ) -> None:
        self.worker_id = worker_id
        self._clock = clock
        self._random = random
        self._started = False
        self._configs = configs
        self._layers = configs.layers  # last applied to all partitions
        # Config of topics without overrides, cached for these layers.
        self._of_most: tuple[WorkerLayers, TopicConfig] | None = None
        self.log_dirs = log_dirs
        log_dirs.listener = self
        self._image = MetadataImage.empty("")  # last published
        self.replication = replication
        replication.on_failure = self.fail
        replication.log_dirs = log_dirs
        # By topic: called when this worker becomes the leader of a partition in a new leader epoch,
        # in the step that assigns it.
        self.on_elected: dict[str, Callable[[Partition], object]] = {}
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._by_raw_name: dict[bytes, dict[int, Partition]] = {}
        self._names: dict[Uuid, str] = {}  # topic names by id, with offline partitions
        self._by_id: dict[Uuid, dict[int, Partition]] = {}
        self._offline: dict[Uuid, set[int]] = {}  # indexes of partitions that cannot be used
        # Partitions whose newest state waits for an append in progress.
        self._to_assign: dict[Partition, None] = {}
        self.departed = NO_TRAFFIC  # traffic of the deleted partitions
        self._failure_logged_at = float("-inf")
        self._failures_unlogged = 0

    def __iter__(self) -> Iterator[Partition]:
        for partitions in list(self._by_id.values()):
            yield from list(partitions.values())

    def __len__(self) -> int:
        return sum(len(partitions) for partitions in self._by_id.values())

    def by_name(self, topic: str, index: int) -> Partition:
        """Return the partition.

        Raises NotLeaderOrFollowerError, or KafkaError (UNKNOWN_TOPIC_OR_PARTITION,
        KAFKA_STORAGE_ERROR if it is offline).
        """
        try:
            return self._by_name[topic][index]
        except KeyError:
            raise self._absent(topic, index) from None

    def _absent(self, topic: str, index: int) -> KafkaError:
        if self.log_dirs.offline_reason((topic, index)):  # logged only, as it contains paths
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"partition {topic}-{index} is offline"
            )
        known = self._image.topic(topic)
        if known is not None and 0 <= index < len(known.partitions):
            state = known.partitions[index]
            if self.worker_id not in state.replicas:
                return NotLeaderOrFollowerError(f"{topic}-{index}", state)
        return KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"this worker has no partition {topic}-{index}"
        )

    def by_id(self, topic_id: Uuid, index: int) -> Partition:
        """Return the partition.

        Raises NotLeaderOrFollowerError, or KafkaError (UNKNOWN_TOPIC_ID,
        UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR if it is offline).
        """
        partition = self._by_id.get(topic_id, {}).get(index)
        if partition is not None:
            return partition
        name = self._names.get(topic_id) or self._image.topic_names.get(topic_id)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has the requested id")
        raise self._absent(name, index)

    def of_raw(self, topic: bytes, *, by_id: bool) -> Mapping[int, Partition] | None:
        """Return the topic's partitions on this worker; `topic` is its id, or its encoded name."""
        return self._by_id.get(topic) if by_id else self._by_raw_name.get(topic)

    def of_topic(self, name: str) -> list[Partition]:
        """Return the topic's partitions on this worker."""
        return list(self._by_name.get(name, {}).values())

    def offline(self, topic_id: Uuid) -> Set[int]:
        """Return the indexes of the topic's offline replicas on this worker."""
        return self._offline.get(topic_id, _NONE)

    @property
    def offline_count(self) -> int:
        """Number of offline replicas of this worker."""
        return sum(len(indexes) for indexes in self._offline.values())

    def topic_config(self, image: MetadataImage, topic: str) -> TopicConfig:
        overrides, is_state = image.topic_configs(topic), is_internal(topic)
        configs = self._configs
        is_of_most = not overrides and not is_state
        if is_of_most and self._of_most is not None and self._of_most[0] is configs.layers:
            return self._of_most[1]
        config = TopicConfig.of(
            configs.layers.topic_configs(overrides, is_internal=is_state),
            configs.own.integer("producer.id.expiration.ms"),
        )
        if is_of_most:
            self._of_most = configs.layers, config
        return config

    # Metadata updates

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Create, assign and remove partitions so that they match `image`.

        Folders of deleted partitions, and of replicas that have moved to other workers, are renamed
        here; a background task removes them later.
        """
        self._image = image
        changed = list(delta.topics())
        await self._delete([before for before, after in changed if after is None and before])
        await self._remove([after for _, after in changed if after is not None])
        await self.log_dirs.write_deletions()
        hosted = [
            (topic, index, state)
            for _, topic in changed
            if topic is not None
            for index, state in enumerate(topic.partitions)
            if self.worker_id in state.replicas
        ]
        is_first, self._started = not self._started, True
        doubtful: list[tuple[TopicImage, int]] = []
        if is_first:
            self.log_dirs.keep_unfound({(topic.name, index) for topic, index, _ in hosted})
            doubtful = self._doubtful(hosted, image)
            await self._report_lost(self._unidentified(image))
            await self._set_strays_aside(image)
        created = await self._create_missing(hosted, image, may_be_absent=is_first)
        if is_first:
            if await self._report_doubtful(doubtful):
                self.log_dirs.settle_doubts()
            await self._report_damaged(hosted, doubtful)
            if await self._report_recreated(created):
                await self.log_dirs.settle()
        configs = self._changed_configs(delta, image, hosted)
        for number, (topic, index, state) in enumerate(hosted):
            partition = self._by_id.get(topic.topic_id, {}).get(index)
            if partition is not None:
                await self._assign(partition, state, configs.get(topic.name))
            if number % SLICE_PARTITIONS == 0:
                await trio.lowlevel.checkpoint()
        if self._layers is self._configs.layers:
            self._reconfigure(delta, image)
        else:
            await self._reconfigure_all(image)

    def _changed_configs(
        self,
        delta: MetadataDelta,
        image: MetadataImage,
        hosted: Iterable[tuple[TopicImage, int, PartitionImage]],
    ) -> dict[str, TopicConfig]:
        """Return the configs of the hosted topics whose configs have changed, by topic name."""
        names = {topic.name for topic, _, _ in hosted}
        if self._layers is self._configs.layers:
            names &= {name for scope, name in delta.resources if scope == Scope.TOPIC}
        return {name: self.topic_config(image, name) for name in names}

    async def _assign(
        self, partition: Partition, state: PartitionImage, config: TopicConfig | None
    ) -> None:
        if partition.state is state:
            return
        if not partition.appending.locked():  # fast path: most partitions have no append pending
            self._assign_nowait(partition, state, config)
            return
        log_dir = self.log_dirs.dir_of((partition.topic, partition.index))
        if log_dir is None:
            await self._assign_after_append(partition)
        elif partition not in self._to_assign:
            self._to_assign[partition] = None
            with suppress(UnresponsiveError):  # no other partition waits for it any longer
                await self.log_dirs.do(
                    log_dir, partial(self._assign_after_append, partition), in_any_case=True
                )

    async def _assign_after_append(self, partition: Partition) -> None:
        """Apply the newest state and config once the append in progress has ended.

        The append belongs to the previous epoch. If its disk hangs, metadata is published
        meanwhile: `publish` no longer waits for this partition.
        """
        async with partition.appending:
            self._to_assign.pop(partition, None)
            if self._by_id.get(partition.topic_id, {}).get(partition.index) is not partition:
                return
            topic = self._image.topic(partition.topic)
            if topic is None or topic.topic_id != partition.topic_id:
                return  # about to be deleted
            state = topic.partitions[partition.index]
            if self.worker_id not in state.replicas:
                return  # about to be removed
            self._assign_nowait(partition, state, self.topic_config(self._image, topic.name))
        await self.replication.record_losses()
        if (elected := self.on_elected.get(partition.topic)) is not None:
            elected(partition)  # also if it has resigned: its coordinator ends

    def _assign_nowait(
        self, partition: Partition, state: PartitionImage, config: TopicConfig | None
    ) -> None:
        """Apply config and state of one metadata image in one step, without a checkpoint between.

        Otherwise a leader could commit records with a new ISR and an old min.insync.replicas, or
        the reverse, a combination that the metadata log never had (KIP-966).
        """
        if config is not None:
            partition.configure(config)
        before, known = partition.state, partition.high_watermark
        try:
            partition.assign(state)
        except StorageError as error:
            self.fail(partition, error)
        if partition.is_leader and state.leader_epoch > before.leader_epoch:
            self.replication.elected(partition, before, known)
            if (elected := self.on_elected.get(partition.topic)) is not None:
                elected(partition)
        self.replication.assigned(partition)

    def _unidentified(self, image: MetadataImage) -> list[tuple[TopicImage, int, int]]:
        """Return the replicas whose log has lost its topic id, with an offset that it had reached.

        Such a log may be that of an earlier topic of the same name, so it is not served. If it was
        the replica's own, this worker may have been in sync with it, and must not lead without.
        """
        found = []
        for log_dir in self.log_dirs:
            for at, plog in log_dir.partitions.items():
                topic = image.topic(at[0])
                if (
                    plog.topic_id != ZERO_UUID
                    or topic is None
                    or at[1] >= len(topic.partitions)
                    or self.worker_id not in topic.partitions[at[1]].replicas
                    or self._is_in_another(log_dir, at, topic.topic_id)
                ):
                    continue
                end = max(plog.log_end_offset, log_dir.checkpoints.high_watermarks.get(at, 0))
                if end:
                    found.append((topic, at[1], end))
        return found

    def _is_in_another(self, log_dir: LogDir, at: tuple[str, int], topic_id: Uuid) -> bool:
        """Return whether the partition has its own log in another directory."""
        return any(
            at in other.offline
            or ((plog := other.partitions.get(at)) is not None and plog.topic_id == topic_id)
            for other in self.log_dirs
            if other is not log_dir
        )

    async def _set_strays_aside(self, image: MetadataImage) -> None:
        """Set aside the logs of topics that were deleted, or recreated, while this worker was down.

        Deleted are the logs of replicas that have moved to other workers meanwhile, and an empty
        log without a topic id, left by a power failure at its creation.
        """
        strays = [
            (log_dir, at, plog)
            for log_dir in self.log_dirs
            for at, plog in (*log_dir.partitions.items(), *((at, None) for at in log_dir.offline))
            if _is_stray(image, at, plog) or self._has_moved(image, at)
        ]
        moved: list[tuple[str, int]] = []
        await self.log_dirs.forget([at for _, at, _ in strays])
        for number, (log_dir, (topic, index), plog) in enumerate(strays):
            try:
                if plog is not None and plog.topic_id == ZERO_UUID and not plog.log_end_offset:
                    log_dir.delete(topic, index, self._random)  # created just before a power cut
                elif plog is not None and not _is_stray(image, (topic, index), plog):
                    log_dir.delete(topic, index, self._random)
                    moved.append((topic, index))
                else:
                    _log_stray(topic, index, plog)
                    log_dir.set_aside(topic, index, self._random, self._clock.now_ms())
            except StorageError as error:
                log.error("cannot set aside the stray partition %s-%d: %s", topic, index, error)
                if isinstance(error, DirectoryFailedError):
                    self.log_dirs.fail(log_dir, error)
            if number % SLICE_PARTITIONS == 0:
                await trio.lowlevel.checkpoint()
        _log_moved(moved)
        self.log_dirs.refuse_duplicates()

    def _has_moved(self, image: MetadataImage, at: tuple[str, int]) -> bool:
        """Return whether the log's partition, which is in `image`, has no replica here."""
        topic, index = at
        return self.worker_id not in image.topics[topic].partitions[index].replicas

    async def _create_missing(
        self,
        hosted: list[tuple[TopicImage, int, PartitionImage]],
        image: MetadataImage,
        *,
        may_be_absent: bool,
    ) -> list[tuple[TopicImage, int]]:
        """Add the hosted partitions that are missing; return those whose log was created, empty."""
        configs: dict[str, TopicConfig] = {}
        missing: list[tuple[TopicImage, int]] = []
        for topic, index, _ in hosted:
            self._names[topic.topic_id] = topic.name
            if index not in self._by_id.get(topic.topic_id, {}):
                configs[topic.name] = configs.get(topic.name) or self.topic_config(
                    image, topic.name
                )
                missing.append((topic, index))
        log_dirs = self.log_dirs
        new = [
            NewPartition(topic.name, index, topic.topic_id, configs[topic.name].log)
            for topic, index in missing
            if log_dirs.dir_of((topic.name, index)) is None
            and log_dirs.offline_reason((topic.name, index)) is None
        ]
        failure = StorageError("its directory holds the log of an earlier topic of that name")
        try:
            await log_dirs.create(new, self._clock.now_ms(), may_be_absent=may_be_absent)
        except StorageError as error:
            failure = error
        added: list[Partition] = []
        for topic, index in missing:
            plog = log_dirs.log((topic.name, index))
            if plog is not None and plog.topic_id == topic.topic_id:
                added.append(self._add(topic, index, plog, configs[topic.name]))
                continue
            self._offline.setdefault(topic.topic_id, set()).add(index)
            if self.worker_id not in topic.partitions[index].offline:
                self.replication.lost(topic.topic_id, index)
            if log_dirs.offline_reason((topic.name, index)) is None:
                log.error("partition %s-%d is offline: %s", topic.name, index, failure)
                log_dirs.set_offline((topic.name, index), failure)
        wanted = {(one.topic, one.partition) for one in new}
        await self.replication.recovered(
            [one for one in added if (one.topic, one.index) not in wanted]
        )
        return [
            (topic, index)
            for topic, index in missing
            if (topic.name, index) in wanted and index in self._by_id.get(topic.topic_id, {})
        ]

    async def _report_recreated(self, created: list[tuple[TopicImage, int]]) -> bool:
        """Report lost logs to the controller before this worker may lead.

        Returns False if another process has registered as this worker meanwhile.
        """
        return await self._report_lost(
            [
                (topic, index, self.log_dirs.noted_end((topic.name, index)))
                for topic, index in created
                if self.log_dirs.is_lost((topic.name, index))
            ]
        )

    async def _report_lost(self, logs: Sequence[tuple[TopicImage, int, int | None]]) -> bool:
        """Record lost logs, with an offset that each had reached, and report them.

        Returns False if another process has registered as this worker meanwhile.
        """
        lost = [
            row for row in logs if not _has_nothing_yet(row[0].partitions[row[1]], self.worker_id)
        ]
        unreported = [
            LostLog(topic.name, topic.topic_id, index, noted_end)
            for topic, index, noted_end in lost
            if self.worker_id not in topic.partitions[index].blank
        ]
        if not unreported:
            return True
        names = [f"{topic.name}-{index}" for topic, index, _ in lost[:MOST_NAMED]]
        log.warning(
            "the logs of %d partitions are lost and were recreated empty: %s%s",
            len(lost),
            ", ".join(names),
            ", ..." if len(lost) > MOST_NAMED else "",
        )
        await self.replication.lost_logs(unreported)
        return await self.replication.report_recreated(
            [(each.topic_id, each.partition) for each in unreported]
        )

    def _doubtful(
        self, hosted: list[tuple[TopicImage, int, PartitionImage]], image: MetadataImage
    ) -> list[tuple[TopicImage, int]]:
        """Return the replicas in sync or eligible of which this worker may miss records.

        Their log directories have older marks than others. None if the controller has not believed
        the newer marks: then it relies on none of this worker's logs.
        """
        worker = image.workers.get(self.worker_id)
        if worker is None or worker.previous_broker_epoch is None:
            return []
        return [
            (topic, index)
            for topic, index, state in hosted
            if self.worker_id in (*state.isr, *state.elr)
            and self.log_dirs.is_doubtful((topic.name, index))
        ]

    async def _report_doubtful(self, doubtful: Sequence[tuple[TopicImage, int]]) -> bool:
        """Report these replicas to the controller before this worker may lead.

        Returns False if another process has registered as this worker meanwhile.
        """
        if not doubtful:
            return True
        log.warning(
            "records of %d partitions may be missing, because the marks in %s are older than those"
            " in other log directories, as after a loss of power or with an older image of the"
            " disk: %s%s",
            len(doubtful),
            ", ".join(self.log_dirs.doubtful_paths),
            ", ".join(f"{topic.name}-{index}" for topic, index in doubtful[:MOST_NAMED]),
            ", ..." if len(doubtful) > MOST_NAMED else "",
        )
        return await self.replication.report_doubtful(
            [(topic.topic_id, index) for topic, index in doubtful]
        )

    async def _report_damaged(
        self,
        hosted: list[tuple[TopicImage, int, PartitionImage]],
        doubtful: Sequence[tuple[TopicImage, int]],
    ) -> None:
        """Report logs with disk damage to the controller before this worker may lead.

        The previous process was stopped or killed without a power failure, so all that it wrote
        should be on disk, as this worker's registration states (`newest_broker_epoch`). Other
        replicas in the ISR or ELR have the missing records. Those of `doubtful` are reported
        already.
        """
        # After a power failure the controller does not rely on this worker's logs.
        reported = {(topic.topic_id, index) for topic, index in doubtful}
        is_relied_on = self.log_dirs.newest_broker_epoch >= 0
        damaged = [
            (topic, index)
            for topic, index, state in hosted
            if is_relied_on
            and (topic.topic_id, index) not in reported
            and self.worker_id in (may_lead := {*state.isr, *state.elr})
            and len(may_lead) > 1
            and (found := self._by_id.get(topic.topic_id, {}).get(index)) is not None
            and (found.log.was_damaged or found.log.log_end_offset < found.known_high_watermark)
        ]
        if damaged:
            log.warning(
                "%d logs are damaged; their records are fetched again from intact replicas: %s%s",
                len(damaged),
                ", ".join(f"{topic.name}-{index}" for topic, index in damaged[:MOST_NAMED]),
                ", ..." if len(damaged) > MOST_NAMED else "",
            )
            await self.replication.report_recreated(
                [(topic.topic_id, index) for topic, index in damaged]
            )
        for partitions in self._by_id.values():
            for partition in partitions.values():
                if partition.log.was_damaged:
                    try:
                        partition.log.forget_damage()
                    except StorageError as error:
                        log.warning(
                            "cannot remove the damage marker of partition %s: %s; the next start "
                            "reports the damage again",
                            partition,
                            error,
                        )

    def _add(
        self, topic: TopicImage, index: int, plog: PartitionLog, config: TopicConfig
    ) -> Partition:
        at = topic.name, index
        log_dir = self.log_dirs.dir_of(at)
        partition = Partition(
            topic.name,
            topic.topic_id,
            index,
            self.replication.context,
            plog,
            config,
            0 if log_dir is None else log_dir.checkpoints.high_watermarks.get(at, 0),
        )
        partitions = self._by_id.setdefault(topic.topic_id, {})
        partitions[index] = partition
        self._by_name[topic.name] = partitions  # the mapping of `_by_id`
        self._by_raw_name[topic.name.encode()] = partitions
        return partition

    def _forget(self, name: str, topic_id: Uuid) -> Iterable[Partition]:
        self._names.pop(topic_id, None)
        self._offline.pop(topic_id, None)
        partitions = self._by_id.pop(topic_id, {})
        if self._by_name.get(name) is partitions:
            del self._by_name[name], self._by_raw_name[name.encode()]
        return partitions.values()

    async def _delete(self, topics: Sequence[TopicImage]) -> None:
        gone: dict[tuple[str, int], End | None] = {}
        for topic in topics:
            for number, partition in enumerate(self._forget(topic.name, topic.topic_id)):
                partition.retire()
                self.departed = self.departed.plus(partition.traffic)
                self.replication.removed(partition)
                gone[topic.name, partition.index] = partial(_end_append, partition)
                if number % SLICE_PARTITIONS == 0:
                    await trio.lowlevel.checkpoint()
            for index in range(len(topic.partitions)):
                if self.log_dirs.offline_reason((topic.name, index)):
                    gone.setdefault((topic.name, index), None)
        await self.log_dirs.delete_all(gone, self._random)

    async def _remove(self, topics: Iterable[TopicImage]) -> None:
        """Remove the replicas of these topics that have moved to other workers, and their logs."""
        left = [
            (topic, index, topic.partitions[index])
            for topic in topics
            for index in (
                self._by_id.get(topic.topic_id, {}).keys()
                | self._offline.get(topic.topic_id, _NONE)
            )
            if self.worker_id not in topic.partitions[index].replicas
        ]
        gone: dict[tuple[str, int], End | None] = {}
        for number, (topic, index, state) in enumerate(left):
            partition = self._take_out(topic, index)
            gone[topic.name, index] = None
            if partition is not None:
                self.replication.removed(partition)
                if partition.appending.locked():
                    gone[topic.name, index] = partial(self._leave_after_append, partition, state)
                else:
                    self._leave(partition, state)
            if number % SLICE_PARTITIONS == 0:
                await trio.lowlevel.checkpoint()
        if gone:
            _log_moved(list(gone))
            await self.log_dirs.delete_all(gone, self._random)

    async def _leave_after_append(self, partition: Partition, state: PartitionImage) -> None:
        async with partition.appending:  # the pending append belongs to the previous epoch
            self._leave(partition, state)

    def _leave(self, partition: Partition, state: PartitionImage) -> None:
        """End the replica, whose partition has moved to other workers."""
        try:
            partition.assign(state)
        except StorageError as error:
            log.error("cannot end the replica of partition %s: %s", partition, error)
        partition.wake_waiters()  # also if the leader is the same: consumers read here
        self.departed = self.departed.plus(partition.traffic)

    def _take_out(self, topic: TopicImage, index: int) -> Partition | None:
        """Forget the topic's partition with that index; return it unless it had no log."""
        offline = self._offline.get(topic.topic_id, set())
        offline.discard(index)
        if not offline:
            self._offline.pop(topic.topic_id, None)
        partitions = self._by_id.get(topic.topic_id, {})
        partition = partitions.pop(index, None)
        if not partitions and not offline:
            self._forget(topic.name, topic.topic_id)
        return partition

    def _reconfigure(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for scope, name in delta.resources:
            if scope == Scope.TOPIC and name in self._by_name:
                config = self.topic_config(image, name)
                for partition in self._by_name[name].values():
                    partition.configure(config)
                    partition.advance()

    async def _reconfigure_all(self, image: MetadataImage) -> None:
        """Apply changed configs of the worker, the defaults of topics, to all partitions."""
        self._layers = self._configs.layers
        for number, partition in enumerate(self):
            partition.configure(self.topic_config(image, partition.topic))
            partition.advance()
            if number % SLICE_PARTITIONS == 0:
                await trio.lowlevel.checkpoint()

    # When a log directory fails

    def fail(self, partition: Partition, error: StorageError) -> None:
        """Handle a failed read or write of the partition's log.

        A transient failure is logged; after any other one the partition is offline, unless the
        log that failed has been replaced by its copy in another directory.
        """
        if self._by_id.get(partition.topic_id, {}).get(partition.index) is not partition:
            return  # deleted meanwhile
        is_current = self.log_dirs.failed_at((partition.topic, partition.index), error)
        if not is_current or partition.offline is not None:
            return
        if partition.log.failure is None and not isinstance(error, UnreadableError):
            self._log_failure(partition, error)  # transient: a full disk may have space again
        else:
            log.error("partition %s is offline: %s", partition, error)
            self._take_offline(partition, str(error))

    def directory_failed(self, log_dir: LogDir) -> None:
        """Take all partitions of the failed log directory offline."""
        for at in log_dir.partitions:
            partition = self._by_name.get(at[0], {}).get(at[1])
            if partition is not None and partition.log is log_dir.partitions[at]:
                self._take_offline(partition, f"log directory {log_dir.path} is offline")

    def _take_offline(self, partition: Partition, reason: str) -> None:
        self._offline.setdefault(partition.topic_id, set()).add(partition.index)
        partition.fail(reason)
        self.replication.removed(partition)
        self.replication.lost(partition.topic_id, partition.index)

    def log_failed(self, at: tuple[str, int], error: StorageError) -> None:
        """Handle a reader's error in the log of the partition with that topic and index."""
        partition = self._by_name.get(at[0], {}).get(at[1])
        if partition is not None:
            self.fail(partition, error)

    def _log_failure(self, partition: Partition, error: StorageError) -> None:
        now = self._clock.monotonic()
        if now - self._failure_logged_at < FAILURE_LOG_SECONDS:
            self._failures_unlogged += 1
            return
        others = (
            f" ({self._failures_unlogged} more failures since the last line)"
            if self._failures_unlogged
            else ""
        )
        log.error(
            "access to the log of partition %s failed: %s; the partition stays online%s",
            partition,
            error,
            others,
        )
        self._failure_logged_at, self._failures_unlogged = now, 0


async def _end_append(partition: Partition) -> None:
    """Wait for the append in progress: no file is closed that a thread writes."""
    async with partition.appending:
        pass


def _log_moved(replicas: Sequence[tuple[str, int]]) -> None:
    if replicas:
        log.info(
            "the logs of %d replicas that have moved to other workers are deleted: %s%s",
            len(replicas),
            ", ".join(f"{name}-{index}" for name, index in replicas[:MOST_NAMED]),
            ", ..." if len(replicas) > MOST_NAMED else "",
        )


def _has_nothing_yet(state: PartitionImage, worker_id: int) -> bool:
    """Return whether a move adds the replica, which has never been in sync."""
    return worker_id in state.adding and worker_id not in (
        *state.isr,
        *state.elr,
        state.last_leader,
    )


def _log_stray(topic: str, index: int, plog: PartitionLog | None) -> None:
    if plog is not None and plog.topic_id == ZERO_UUID:
        log.warning(
            "the log of partition %s-%d has no topic id, as after a loss of power before its first "
            "flush; it is set aside as stray",
            topic,
            index,
        )
    else:
        log.warning(
            "this worker has no replica of partition %s-%d; its log is set aside as stray",
            topic,
            index,
        )


def _is_stray(image: MetadataImage, at: tuple[str, int], plog: PartitionLog | None) -> bool:
    """Return whether `image` has no partition for the log; an offline log is compared by name."""
    known = image.topic(at[0])
    if known is None or at[1] >= len(known.partitions):
        return True
    return plog is not None and known.topic_id != plog.topic_id
