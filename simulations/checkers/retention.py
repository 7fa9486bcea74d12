"""Checker of retention: only due segments are deleted.

It observes the moves of log start offsets, which decide, and the renames on the disk, which follow.
"""

from itertools import pairwise
from typing import Final

from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.simulations.checkers.configs import TOPIC, ConfigsStay, Resource
from metaquorum.simulations.checkers.deletion import DeletedStaysDeleted
from metaquorum.simulations.checkers.log_files import Segment, naive_segments
from metaquorum.simulations.harness.environment import Checker, Environment
from metaquorum.simulations.harness.history import Fetched, Topic
from metaquorum.simulations.harness.node import topic_id_of
from metaquorum.simulations.kernel.storage import Storage

_UNLIMITED: Final = -1
_DEFAULT_MS: Final = 7 * 24 * 3600 * 1000


class RetentionIsDue(Checker):
    """A segment is deleted if it is too old, exceeds the size, or is before the log start.

    Never the active segment, and nothing at or past the high watermark. Between the request of a
    new config and its response either value may be in force.
    """

    invariant = "L3"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        # By (topic, partition): end of the segments that were rightly deleted once. After a power
        # loss they may exist again, and are deleted again.
        self._gone: dict[tuple[bytes, int], int] = {}

    def fetched(self, fetched: Fetched) -> None:
        if fetched.log_start_offset < 0:
            return  # an old version of Fetch has no log start offset
        self.compare(
            fetched.log_start_offset <= fetched.high_watermark,
            "{}-{} begins at {}, past its high watermark {}",
            fetched.topic,
            fetched.partition,
            fetched.log_start_offset,
            fetched.high_watermark,
        )

    def advanced(self, log: PartitionLog) -> None:
        """Note the segments that are due now, at the move of a log start offset past them.

        Their files are renamed after a sync, and the clock may be set back, or the config changed,
        in between.
        """
        found = self._place_of(log.folder)
        if found is None:
            return
        topic, partition = found
        segments = naive_segments(self.environment.node.storage, log.folder)
        end = min(self._due_to(topic, 0, segments), log.log_start_offset)
        place = topic.topic_id, partition
        self._gone[place] = max(self._gone.get(place, 0), end)

    def retired(self, storage: Storage, path: str) -> None:
        """Check the segment at `path`, which is about to be renamed as deleted."""
        if storage is not self.environment.node.storage:
            return
        folder, name = path.rsplit("/", 1)
        found = self._place_of(folder)
        if found is None:
            return
        segments = naive_segments(storage, folder)
        base = int(name.removesuffix(".log"))
        this = next(segment for segment in segments if segment.base_offset == base)
        rest = [segment for segment in segments if segment is not this]
        self._judge(*found, this, rest)

    def _place_of(self, folder: str) -> tuple[Topic, int] | None:
        """Return the partition of a log's folder; None if its topic is not live or is compacted.

        On a device that hangs, a deleted topic's folder has its name still when another topic has.
        """
        name, _, partition = folder.rsplit("/", 1)[1].rpartition("-")
        topic_id = topic_id_of(self.environment.node.storage, folder)
        for topic in self.environment.history.live_topics:
            if topic.name == name and topic_id in (None, topic.topic_id):
                return None if topic.is_compacted else (topic, int(partition))
        return None

    def _judge(self, topic: Topic, partition: int, this: Segment, rest: list[Segment]) -> None:
        name = f"{topic}-{partition} segment {this.base_offset}"
        later = [segment for segment in rest if segment.base_offset > this.base_offset]
        if not self.compare(bool(later), "{} is deleted, but is the active segment", name):
            return
        end = min(segment.base_offset for segment in later)
        place = topic.topic_id, partition
        earlier = [segment for segment in rest if segment.base_offset < this.base_offset]
        self.compare(not earlier, "{} is deleted before {}", name, earlier[:1])
        due = (
            end <= self._gone.get(place, 0)
            or self.environment.checker(DeletedStaysDeleted).may_begin_at(
                topic.name, partition, end
            )
            or self._too_old(topic, this)
            or self._too_much(topic, rest)
        )
        if due:
            extent = self._due_to(topic, end, later)
            self._gone[place] = max(self._gone.get(place, 0), extent)
            self.environment.world.count("segments deleted")
        newest = max((batch.max_timestamp for batch in this.batches), default=-1)
        self.compare(
            due,
            "{} is deleted too early: its newest record is {} ms old, {} bytes stay; retention.ms "
            "{}, retention.bytes {}",
            name,
            self._now_ms() - newest,
            sum(segment.size for segment in rest),
            self._may_be(topic, "retention.ms", _DEFAULT_MS),
            self._may_be(topic, "retention.bytes", _UNLIMITED),
        )

    def _due_to(self, topic: Topic, end: int, later: list[Segment]) -> int:
        """Return the end of the segments that may be deleted with the one that ends at `end`.

        The log start offset moves past all of them at once, also for the next process, but their
        files are deleted one by one: the log may be much smaller when the last one is deleted.
        """
        ordered = sorted(later, key=lambda segment: segment.base_offset)
        for segment, following in pairwise(ordered):
            rest = [one for one in ordered if one.base_offset > segment.base_offset]
            if not (self._too_old(topic, segment) or self._too_much(topic, rest)):
                break
            end = following.base_offset
        return end

    def _now_ms(self) -> int:
        return int(self.environment.node.clock.wall_s() * 1000)

    def _may_be(self, topic: Topic, key: str, default: int) -> set[int]:
        values = self.environment.checker(ConfigsStay).may_be(Resource(TOPIC, topic.name), key)
        return {default if value is None else int(value) for value in values}

    def _too_old(self, topic: Topic, this: Segment) -> bool:
        limits = self._may_be(topic, "retention.ms", _DEFAULT_MS) - {_UNLIMITED}
        newest = max((batch.max_timestamp for batch in this.batches), default=-1)
        return any(self._now_ms() - newest > limit for limit in limits)

    def _too_much(self, topic: Topic, rest: list[Segment]) -> bool:
        limits = self._may_be(topic, "retention.bytes", _UNLIMITED) - {_UNLIMITED}
        return any(sum(segment.size for segment in rest) >= limit for limit in limits)
