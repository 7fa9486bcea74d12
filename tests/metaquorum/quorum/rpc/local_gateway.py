"""Client of a controller in this process: makes changes and waits until they are visible."""

from collections.abc import Sequence
from typing import TypeVar

from metaquorum.metadata.loader import MetadataLoader
from metaquorum.quorum.controller.config_changes import ResourceChange
from metaquorum.quorum.controller.controller import Controller
from metaquorum.quorum.controller.heartbeats import HeartbeatAnswer, WorkerHeartbeat
from metaquorum.quorum.controller.proposer import Committed
from metaquorum.quorum.controller.topics import (
    NewPartitions,
    NewTopic,
    ProducerIdBlock,
    TopicOutcome,
    allocate_producer_ids,
)
from metaquorum.quorum.controller.worker_registration import WorkerRegistration
from metaquorum.wire.primitives.errors import KafkaError

T = TypeVar("T")


class LocalGateway:
    """Client for all metadata changes of a controller in this process."""

    def __init__(self, controller: Controller, loader: MetadataLoader) -> None:
        self._controller = controller
        self._loader = loader

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicOutcome]:
        return await self._seen(
            await self._controller.create_topics(topics, validate_only=validate_only)
        )

    async def delete_topics(
        self, topics: Sequence[tuple[str | None, bytes | None]]
    ) -> list[TopicOutcome]:
        return await self._seen(await self._controller.delete_topics(topics))

    async def create_partitions(
        self, specs: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[KafkaError | None]:
        return await self._seen(
            await self._controller.create_partitions(specs, validate_only=validate_only)
        )

    async def change_configs(
        self, resources: Sequence[ResourceChange], *, validate_only: bool = False
    ) -> list[KafkaError | None]:
        return await self._seen(
            await self._controller.change_configs(resources, validate_only=validate_only)
        )

    async def allocate_producer_ids(self, worker_id: int, broker_epoch: int) -> ProducerIdBlock:
        committed = await self._controller.change(
            lambda image: allocate_producer_ids(image, worker_id, broker_epoch)
        )
        return committed.answer

    async def register_worker(self, worker: WorkerRegistration) -> int:
        """Register and return the broker epoch, without waiting until the metadata is visible here.

        A worker publishes metadata only after its registration, or it would lead in a leader epoch
        of its predecessor.
        """
        return (await self._controller.worker_lifecycle.register_worker(worker)).answer

    async def heartbeat(self, heartbeat: WorkerHeartbeat) -> HeartbeatAnswer:
        return await self._controller.worker_lifecycle.heartbeat(heartbeat)

    async def _seen(self, changed: Committed[T]) -> T:
        await self._loader.wait_visible(changed.end_offset)
        return changed.answer
