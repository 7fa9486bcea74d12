"""Creation of internal topics when they are first needed.

The first request asks the active controller; others that come meanwhile wait for the same answer.
A client retries after COORDINATOR_NOT_AVAILABLE; its next request is sent to the controller again.
"""

from collections.abc import Mapping
from typing import Final

import trio

from metaquorum.dataplane.config.worker import WorkerConfigs
from metaquorum.dataplane.worker.feature_levels import needs_level
from metaquorum.metadata.image import TopicImage
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.quorum.controller.internal_topics import LEVELS, CreateInternalTopic
from metaquorum.quorum.rpc.controller_client import ControllerClient
from metaquorum.quorum.rpc.methods import CREATE_INTERNAL_TOPIC
from metaquorum.quorum.rpc.session import WorkerSession
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

# Seconds to wait for the controller and for the metadata of the topic.
CREATE_S: Final = 5.0
# First words of the configs from which a topic gets its properties.
_PREFIXES: Final[Mapping[str, str]] = {
    CONSUMER_OFFSETS: "offsets.topic",
    TRANSACTION_STATE: "transaction.state.log",
}


class _Creation:
    """One request to the controller, and those that wait for it."""

    def __init__(self) -> None:
        self.has_ended = trio.Event()
        self.error: KafkaError | None = None


class InternalTopics:
    """Creator of the internal topics of one worker."""

    def __init__(
        self,
        controller_client: ControllerClient,
        session: WorkerSession,
        loader: MetadataLoader,
        configs: WorkerConfigs,
    ) -> None:
        self._controller_client = controller_client
        self._session = session
        self._loader = loader
        self._configs = configs
        self._creations: dict[str, _Creation] = {}

    async def ensure(self, name: str = CONSUMER_OFFSETS) -> TopicImage:
        """Return the topic, which is created if it does not exist.

        Raises KafkaError: UNSUPPORTED_VERSION if the cluster's metadata.version is too low,
        COORDINATOR_NOT_AVAILABLE if the controller does not create the topic in time.
        """
        while True:
            image = self._loader.visible
            needs_level(image, LEVELS[name], f"topic '{name}'")
            if (topic := image.topic(name)) is not None:
                return topic
            creation = self._creations.get(name)
            if creation is None:
                await self._create(name)
                continue
            await creation.has_ended.wait()
            if creation.error is not None:
                raise KafkaError(creation.error.code, creation.error.message)

    async def _create(self, name: str) -> None:
        creation = self._creations[name] = _Creation()
        try:
            await self._controller_client.change(
                CREATE_INTERNAL_TOPIC, self._request(name), timeout_s=CREATE_S
            )
            if self._loader.visible.topic(name) is None:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, "this node has not received its metadata in time"
                )
        except KafkaError as error:
            creation.error = KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"topic '{name}' does not exist yet and was not created: {error.message}",
            )
            raise creation.error from None
        finally:  # if this request was cancelled, one of those that wait asks the controller
            del self._creations[name]
            creation.has_ended.set()

    def _request(self, name: str) -> CreateInternalTopic:
        configs, prefix = self._configs.own, _PREFIXES[name]
        return CreateInternalTopic(
            self._session.registration.worker_id,
            self._session.broker_epoch,
            name,
            configs.integer(f"{prefix}.num.partitions"),
            configs.integer(f"{prefix}.replication.factor"),
            configs.integer(f"{prefix}.segment.bytes"),
            configs.integer(f"{prefix}.min.isr") if name == TRANSACTION_STATE else 0,
        )
