"""Checkers of metadata: acknowledged changes stay, and the image matches the log."""

from metaquorum.metadata.batch import Batch
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import MetadataRecord
from metaquorum.metadata.replay import Replay
from metaquorum.simulations.harness.environment import Checker, Environment
from metaquorum.simulations.harness.history import Topic


class AcknowledgedChangesStay(Checker):
    """A created topic keeps its id until its deletion is requested; then it may be missing.

    Once the deletion is acknowledged, the topic never comes back. A deletion that took as long as
    its timeout is acknowledged once it is committed, before the worker has applied it: such a topic
    may be there until it is missing once.
    """

    invariant = "M3"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._asked: set[str] = set()
        self._there: dict[bytes, Topic] = {}
        self._deleted: set[bytes] = set()
        self._committed: set[bytes] = set()  # deletions that the worker may not have applied yet
        self._partitions_asked: dict[str, set[int]] = {}

    def partitions_asked(self, name: str, count: int) -> None:
        self._partitions_asked.setdefault(name, set()).add(count)

    def create_asked(self, name: str) -> None:
        self._asked.add(name)

    def created(self, topic: Topic) -> None:
        self._there[topic.topic_id] = topic

    def deleted(self, topic: Topic, *, is_applied: bool) -> None:
        self._there.pop(topic.topic_id, None)
        (self._deleted if is_applied else self._committed).add(topic.topic_id)

    def seen(self, topics: dict[str, tuple[bytes, int]]) -> None:
        """Compare the topics that the node returns: name -> id and number of partitions."""
        for topic in self._there.values():
            if not topic.delete_asked:
                topic_id, partitions = topics.get(topic.name, (b"", 0))
                asked = self._partitions_asked.get(topic.name, set())
                self.compare(
                    topic_id == topic.topic_id
                    and (partitions == topic.partitions or partitions in asked)
                    and partitions >= topic.partitions,
                    "{} had {} partitions (requested: {}), and now is {}",
                    topic,
                    topic.partitions,
                    sorted(asked),
                    topics.get(topic.name),
                )
                topic.partitions = max(partitions, topic.partitions)
        missing = self._committed.difference(topic_id for topic_id, _ in topics.values())
        self._committed -= missing
        self._deleted |= missing
        for name, (topic_id, _) in topics.items():
            self.compare(name in self._asked, "topic {} was never requested", name)
            self.compare(topic_id not in self._deleted, "{} was deleted but exists", name)


class AppliedStays(Checker):
    """All runs of a node apply the same metadata records at the same offsets."""

    invariant = "M2"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.applied: dict[int, tuple[int, list[MetadataRecord]]] = {}

    def seen(self, batch: Batch) -> None:
        records = list(batch.records())
        known = self.applied.setdefault(batch.expected_offset, (batch.end_offset, records))
        self.compare(
            known == (batch.end_offset, records),
            "offset {} of the metadata log was {} and now is {}",
            batch.expected_offset,
            known,
            records,
        )

    def fold(self, cluster_id: str) -> MetadataImage:
        """Return an image of all records that were ever applied, replayed from the start."""
        replay = Replay(MetadataImage.empty(cluster_id))
        offset = 0
        while offset in self.applied:
            offset, records = self.applied[offset]
            replay.apply(records)
        return replay.finish()[0]


class ImageIsFold(Checker):
    """The metadata image equals the replay of the whole log, and of snapshot and tail."""

    invariant = "M4"

    def images(self, image: MetadataImage, fold: MetadataImage, reloaded: MetadataImage) -> None:
        """Compare the images of a stopped node, of all records it ever applied, and of its disk."""
        for name, other in (("the fold of its log", fold), ("snapshot and tail", reloaded)):
            self.compare(
                other.end_offset == image.end_offset
                and sorted(map(repr, other.records())) == sorted(map(repr, image.records())),
                "the image at {} is not {}, which ends at {}",
                image.end_offset,
                name,
                other.end_offset,
            )
