"""Checkers of a whole cluster: the metadata of all nodes, and the responses to clients."""

from typing import Final

from metaquorum.metadata.batch import Batch
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.replay import Replay
from metaquorum.simulations.cluster.cluster_state import ClusterChecker, ClusterState
from metaquorum.simulations.cluster.quorum_checkers import content
from metaquorum.simulations.cluster.voter_group import CLUSTER_ID
from metaquorum.wire.primitives.errors import ErrorCode


class AnswersInTheirOrder(ClusterChecker):
    """Each connection gets one response per request, in order."""

    invariant = "P1"

    def answered(self, who: str, expected: int, correlation_id: int) -> None:
        self.compare(
            expected == correlation_id,
            "{}: correlation id {} instead of {}",
            who,
            correlation_id,
            expected,
        )


class ClusterIsOneLog(ClusterChecker):
    """All nodes, controllers and workers, apply the same batch at an offset, in every run."""

    invariant = "M2"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self.log: dict[int, Batch] = {}
        self._proposers: dict[int, int] = {}

    def applied(self, term: int, batch: Batch) -> None:
        known = self.log.setdefault(batch.expected_offset, batch)
        self.compare(known == batch, "at {}: {} and {}", batch.expected_offset, known, batch)
        proposer = self._proposers.setdefault(term, batch.proposer)
        self.compare(
            proposer == batch.proposer, "{} and {} both led term {}", proposer, batch.proposer, term
        )

    def fold(self, end_offset: int) -> MetadataImage:
        replay = Replay(MetadataImage.empty(CLUSTER_ID))
        offset = 0
        while offset < end_offset and (batch := self.log.get(offset)) is not None:
            replay.apply(batch.records())
            offset = batch.end_offset
        return replay.finish()[0]


class ClusterImagesAreOne(ClusterChecker):
    """The metadata image of every node, by delta or by snapshot, equals the replayed log."""

    invariant = "M4"

    def images(self, images: dict[str, MetadataImage]) -> None:
        log = self.cluster_state.checker(ClusterIsOneLog)
        folds: dict[int, tuple[int, list[bytes]]] = {}
        for who, image in images.items():
            found = content(image)
            if image.end_offset not in folds:
                folds[image.end_offset] = content(log.fold(image.end_offset))
            wanted = folds[image.end_offset]
            self.compare(
                found == wanted,
                "the image of {} at {} differs from the log at {}: {}",
                who,
                found[0],
                wanted[0],
                sorted(set(found[1]) ^ set(wanted[1]))[:3],
            )


class AnswersHold(ClusterChecker):
    """Acknowledged changes stay: created topics exist, deleted and refused topics do not."""

    invariant = "M3"

    def answered(self, name: str, code: ErrorCode) -> None:
        """Check the response to the only request that creates a topic of this name."""
        self.compare(
            code is not ErrorCode.TOPIC_ALREADY_EXISTS, "{} was requested once, but existed", name
        )

    def images(self, images: dict[str, MetadataImage]) -> None:
        topic_outcomes = self.cluster_state.topic_outcomes
        for who, image in images.items():
            for name, (topic_id, partitions) in topic_outcomes.lasting.items():
                topic = image.topic(name)
                self.compare(
                    topic is not None
                    and topic.topic_id == topic_id
                    and len(topic.partitions) == partitions,
                    "{} was created, but {} has {}",
                    name,
                    who,
                    topic,
                )
            for name in topic_outcomes.refused | topic_outcomes.deleted:
                self.compare(image.topic(name) is None, "{} has {}, refused or deleted", who, name)
            names = set(image.topics)
            self.compare(
                names <= topic_outcomes.asked,
                "{} has {}, never requested",
                who,
                names - topic_outcomes.asked,
            )


class CreatedIsVisible(ClusterChecker):
    """The worker that acknowledged the creation of a topic returns it in Metadata at once."""

    invariant = "M3"

    def shown(self, name: str, topic_id: bytes, shown: dict[str, bytes]) -> None:
        self.compare(
            shown.get(name) == topic_id, "{} was created, but the same worker shows {}", name, shown
        )


class RecordsAreKept(ClusterChecker):
    """Each acknowledged record is in the log once, at the acknowledged offset.

    All topics flush each record before its acknowledgement.
    """

    invariant = "R6"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self.acked: dict[bytes, tuple[str, int, int]] = {}  # value: topic, partition, offset

    def finals(self, found: dict[tuple[str, int], list[tuple[int, bytes]]]) -> None:
        for value, (topic, partition, offset) in self.acked.items():
            if topic not in self.cluster_state.topic_outcomes.lasting:
                continue
            places = [o for o, v in found.get((topic, partition), []) if v == value]
            self.compare(
                places == [offset],
                "{} was acknowledged in {}-{} at {}, but is at {}",
                value,
                topic,
                partition,
                offset,
                places,
            )


class ShutdownsEnd(ClusterChecker):
    """Without faults, the clean stop of a worker ends soon, also while another worker is down."""

    invariant = "R15"

    def stopped(self, who: str, took_s: float, at_most_s: float) -> None:
        self.compare(
            took_s <= at_most_s, "{} stopped after {:.1f} s, not {:.1f}", who, took_s, at_most_s
        )


CLUSTER_CHECKERS: Final[tuple[type[ClusterChecker], ...]] = (
    AnswersInTheirOrder,
    ClusterIsOneLog,
    ClusterImagesAreOne,
    AnswersHold,
    CreatedIsVisible,
    RecordsAreKept,
)
