"""Limits on creating and deleting partitions: the quota `controller_mutation_rate` (KIP-599).

The active controller keeps the token buckets (`metaquorum.quorum.controller.mutation_quotas`); the
worker asks it only if a quota applies to the client. Operations without effect (the topic exists
already, does not exist, is internal, or is only validated) take no tokens.
"""

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from metaquorum.config.resolution import Configs
from metaquorum.dataplane.quotas.client_state import name_of
from metaquorum.dataplane.quotas.muting import throttle_ms
from metaquorum.dataplane.worker.capabilities import (
    HasControllerClient,
    HasImage,
    HasQuotas,
    HasSlicer,
)
from metaquorum.dataplane.worker.context import Request
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.internal_topics import is_internal
from metaquorum.metadata.topic_names import check_topic_name
from metaquorum.quorum.controller.topics import (
    MAX_PARTITIONS_PER_TOPIC,
    USE_DEFAULT,
    NewPartitions,
    NewTopic,
)
from metaquorum.quorum.rpc.methods import TAKE_MUTATIONS, TakeMutations
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

W = TypeVar("W")

EXCEEDED: Final = KafkaError(
    ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
)
# Seconds to wait for the controller, one round trip. Without an answer the quota is not enforced,
# and the change itself then fails if the controller is still unavailable.
ASK_S: Final = 5.0


class LimitsMutations(HasControllerClient, HasQuotas, Protocol):
    """Parts for taking mutation tokens from the controller and muting throttled clients."""


class ChangesPartitions(LimitsMutations, HasImage, HasSlicer, Protocol):
    """Parts for creating and deleting partitions within the quotas."""


class CountsNewPartitions(HasImage, Protocol):
    """Parts for computing the partition count of new topics."""

    @property
    def configs(self) -> Configs:
        """This worker's configs currently in force."""


class CreatesTopics(ChangesPartitions, CountsNewPartitions, Protocol):
    """Parts for creating topics within the quotas."""


class Allowed:
    """Number of operations allowed, from the first on, and the throttle time of the response."""

    __slots__ = ("count", "throttle_ms")

    def __init__(self, count: int, throttle_ms: int = 0) -> None:
        self.count = count
        self.throttle_ms = throttle_ms


async def allowed(
    worker: LimitsMutations, request: Request, counts: Sequence[int], *, is_strict: bool
) -> Allowed:
    """Take tokens for operations that create or delete `counts` partitions each.

    Returns how many operations are allowed. Mutes the client if the controller throttles it.
    """
    quotas, client = worker.quotas, request.client
    name = name_of(client, request.client_id)
    if not any(counts) or not quotas.limits_mutations(name):
        return Allowed(len(counts))
    try:
        taken = await worker.controller_client.ask(
            TAKE_MUTATIONS, TakeMutations(request.context, counts, is_strict), timeout_s=ASK_S
        )
    except KafkaError:
        return Allowed(len(counts))
    if taken.throttle_s > 0:
        quotas.mute_for_mutations(client, name, taken.throttle_s)
    return Allowed(taken.count, throttle_ms(taken.throttle_s))


def partitions_of_new(worker: CountsNewPartitions, spec: NewTopic) -> int:
    if worker.image.topic(spec.name) is not None or is_internal(spec.name):
        return 0
    try:
        check_topic_name(spec.name)
    except KafkaError:
        return 0
    count = len(spec.assignments) if spec.assignments else spec.partitions
    if count == USE_DEFAULT:
        count = worker.configs.integer("num.partitions")
    return count if 0 < count <= MAX_PARTITIONS_PER_TOPIC else 0


def partitions_of(image: MetadataImage, name: str | None, topic_id: bytes | None) -> int:
    topic = image.topic(name) if name is not None else image.topic_by_id(topic_id or b"")
    return 0 if topic is None or is_internal(topic.name) else len(topic.partitions)


def partitions_more(image: MetadataImage, spec: NewPartitions) -> int:
    topic = image.topic(spec.topic)
    if topic is None or is_internal(topic.name) or spec.count > MAX_PARTITIONS_PER_TOPIC:
        return 0
    return max(0, spec.count - len(topic.partitions))
