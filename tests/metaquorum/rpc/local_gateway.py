"""Changes by a controller in this process, and the wait until they are visible; nothing else."""

from collections.abc import Sequence
from typing import TypeVar

from metaquorum.controller.config_changes import ResourceChange
from metaquorum.controller.controller import Controller
from metaquorum.controller.features import FeatureUpdate
from metaquorum.controller.heartbeats import HeartbeatAnswer, WorkerHeartbeat
from metaquorum.controller.proposer import Committed
from metaquorum.controller.quota_changes import QuotaChange
from metaquorum.controller.topics import NewPartitions, NewTopic, ProducerIdBlock, TopicOutcome
from metaquorum.controller.worker_registration import ControllerRegistration, WorkerRegistration
from metaquorum.metadata.loader import MetadataLoader
from wire.primitives.errors import KafkaError

T = TypeVar("T")


class LocalGateway:
    """Everything that changes the metadata, asked of the controller in this process. KafkaError."""

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

    async def change_quotas(
        self, changes: Sequence[QuotaChange], *, validate_only: bool = False
    ) -> list[KafkaError | None]:
        return await self._seen(
            await self._controller.change_quotas(changes, validate_only=validate_only)
        )

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> None:
        await self._seen(
            await self._controller.update_features(updates, validate_only=validate_only)
        )

    async def unregister_worker(self, worker_id: int) -> None:
        await self._seen(await self._controller.worker_lifecycle.unregister_worker(worker_id))

    async def allocate_producer_ids(self, worker_id: int, broker_epoch: int) -> ProducerIdBlock:
        return (await self._controller.allocate_producer_ids(worker_id, broker_epoch)).answer

    async def register_worker(self, worker: WorkerRegistration) -> int:
        """The broker epoch. Not waited for: that anything of it is visible here.

        A worker publishes nothing before it is registered, or it would lead in an epoch of its
        predecessor.
        """
        return (await self._controller.worker_lifecycle.register_worker(worker)).answer

    async def register_controller(self, controller: ControllerRegistration) -> None:
        await self._controller.register_controller(controller)

    async def heartbeat(self, heartbeat: WorkerHeartbeat) -> HeartbeatAnswer:
        return await self._controller.worker_lifecycle.heartbeat(heartbeat)

    async def _seen(self, changed: Committed[T]) -> T:
        await self._loader.wait_visible(changed.end_offset)
        return changed.answer
