"""Leader elections that a client requests (ElectLeaders, KIP-183 and KIP-460).

preferred    elects the first replica if it is live, in sync and not draining, which balances
             leadership again
unclean      elects the first live replica if no in-sync or eligible replica is live; records that
             only the other replicas had are lost, and `unclean_epoch` of the partition marks it;
             refused for internal topics
"""

from collections.abc import Iterator
from enum import IntEnum

from metaquorum.metadata.image import (
    NO_LEADER,
    MetadataImage,
    PartitionImage,
    TopicImage,
    partition_record,
)
from metaquorum.metadata.internal_topics import is_internal, no_unclean_election
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.leaders.eligible_leaders import min_isr
from metaquorum.quorum.controller.leaders.leader_selection import (
    elected,
    elected_unclean,
    led_by,
    led_unclean_by,
    may_lead,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


@frozen
class ElectionSpec:
    """Request to elect a leader for one partition."""

    topic: str
    partition: int
    election_type: int


def specs_of(topic: TopicImage, election_type: int) -> Iterator[ElectionSpec]:
    """Yield a spec for each partition of `topic` that such an election may change."""
    for index, partition in enumerate(topic.partitions):
        if _is_worthwhile(partition, election_type):
            yield ElectionSpec(topic.name, index, election_type)


def _is_worthwhile(partition: PartitionImage, election_type: int) -> bool:
    if election_type == ElectionType.UNCLEAN:
        return partition.leader == NO_LEADER
    return partition.leader != partition.replicas[0]


def elect_leader(image: MetadataImage, spec: ElectionSpec) -> Decision[KafkaError | None]:
    """Decide the requested election; the answer is None or the error."""
    topic = image.topic(spec.topic)
    if topic is None or not 0 <= spec.partition < len(topic.partitions):
        return _refused(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        )
    partition = topic.partitions[spec.partition]
    if not _is_worthwhile(partition, spec.election_type):
        return _refused(
            ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
        )
    if spec.election_type == ElectionType.UNCLEAN:
        after = _unclean(image, topic, partition)
    else:
        after = _preferred(image, partition)
    if isinstance(after, KafkaError):
        return Decision(after)
    assert after is not None, "a new leader changes the partition"
    return Decision(None, [partition_record(topic.topic_id, spec.partition, after)])


def _preferred(
    image: MetadataImage, partition: PartitionImage
) -> PartitionImage | KafkaError | None:
    first = partition.replicas[0]
    if image.is_draining(first):
        return KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"The preferred leader {first} is draining."
        )
    if first not in partition.isr or not may_lead(partition, first, image.is_live):
        return KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader {first} is not in sync, or not available.",
        )
    return led_by(partition, first)


def _unclean(
    image: MetadataImage, topic: TopicImage, partition: PartitionImage
) -> PartitionImage | KafkaError | None:
    leader = elected(partition, image.is_live, image.is_draining)
    if leader != NO_LEADER:
        return led_by(partition, leader, min_isr(image, topic.name))
    if is_internal(topic.name):
        return no_unclean_election(topic.name)
    leader = elected_unclean(partition, image.is_live)
    if leader == NO_LEADER:
        return KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica is available to lead."
        )
    return led_unclean_by(partition, leader)


def _refused(code: ErrorCode, message: str) -> Decision[KafkaError | None]:
    return Decision(KafkaError(code, message))
