"""Administrator that creates and deletes topics, and knows which topics must exist."""

from dataclasses import dataclass, field
from random import Random
from typing import Final

from metaquorum.runtime import Runtime, sleep
from metaquorum.simulations.checkers.configs import ConfigsStay
from metaquorum.simulations.checkers.metadata import AcknowledgedChangesStay
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.harness.environment import Environment
from metaquorum.simulations.harness.history import Topic
from metaquorum.simulations.workloads.changes import Changes, topic_ids
from metaquorum.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from metaquorum.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from metaquorum.wire.messages.metadata import MetadataRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

RETRY_S: Final = 0.1
DELETE_TIMEOUT_MS: Final = 5000


@dataclass(slots=True)
class Plan:
    name: str
    partitions: int
    configs: dict[str, str] = field(default_factory=dict)


def draw_plan(environment: Environment, draw: Random, number: int) -> Plan:
    settings = environment.settings
    configs = {
        "internal.segment.bytes": str(settings.segment_bytes),
        "index.interval.bytes": str(settings.index_interval_bytes),
        "max.message.bytes": "1048588",  # not the worker's value, which others change
    }
    if draw.random() < settings.append_time:
        configs["message.timestamp.type"] = "LogAppendTime"
    if draw.random() < settings.flush:
        configs["flush.messages"] = "1"
    if draw.random() < settings.retention:
        if draw.random() < 0.5:
            configs["retention.bytes"] = str(settings.segment_bytes * 2)
        else:
            configs["retention.ms"] = draw.choice(["300", "2000", "300000"])
    if settings.compacted and draw.random() < settings.compacted:
        configs["cleanup.policy"] = "compact"
        configs["min.cleanable.dirty.ratio"] = draw.choice(["0.0", "0.3"])
        configs["delete.retention.ms"] = str(settings.delete_retention_ms)
    return Plan(f"topic-{number}", draw.randint(1, settings.max_partitions), configs)


class Admin:
    def __init__(self, environment: Environment, draw: Random) -> None:
        self.environment = environment
        self._draw = draw
        self._kept = environment.checker(AcknowledgedChangesStay)
        self._configs = environment.checker(ConfigsStay)
        self._changes = Changes(environment, draw)
        self._plans = [
            draw_plan(environment, draw, number) for number in range(environment.settings.topics)
        ]
        self._made = environment.settings.topics

    async def run(self, runtime: Runtime) -> None:
        while not self.environment.closing:
            try:
                connection = await self.environment.connect(runtime, "admin", self._draw)
            except BROKEN:
                await sleep(runtime.clock, RETRY_S)
                continue
            try:
                await self._use(runtime, connection)
            except BROKEN as error:
                self.environment.world.say("admin", f"connection lost: {error!r}")
            finally:
                connection.close()
            await sleep(runtime.clock, RETRY_S)

    async def _use(self, runtime: Runtime, connection: ClientConnection) -> None:
        while not self.environment.closing:
            await self._look(connection)
            while self._plans:
                await self._create(connection, self._plans[0])
                self._plans.pop(0)
            await sleep(runtime.clock, self._draw.uniform(0.05, 0.5))
            if self._draw.random() < self.environment.settings.delete_topics:
                await self._delete_one(runtime, connection)
            if self._draw.random() < self.environment.settings.changes:
                await self._changes.make_one(connection)
                await self._changes.compare(connection)
            if self._draw.random() < 0.3:
                self._plans.append(draw_plan(self.environment, self._draw, self._made))
                self._made += 1
                if self._made > 4 * self.environment.settings.topics:
                    self._plans.clear()

    async def _create(self, connection: ClientConnection, plan: Plan) -> None:
        self._kept.create_asked(plan.name)
        topic = CreatableTopic(
            name=plan.name,
            num_partitions=plan.partitions,
            replication_factor=1,
            configs=[
                CreatableTopicConfig(name=name, value=value) for name, value in plan.configs.items()
            ],
        )
        message = CreateTopicsRequest(topics=[topic], timeout_ms=5000)
        answer = (await connection.call(ApiKey.CREATE_TOPICS, message)).topics[0]
        code = ErrorCode(answer.error_code)
        self.environment.world.say(
            "admin", f"creates {plan.name}: {code.name} {answer.error_message}"
        )
        if code is ErrorCode.NONE:
            topic_id = bytes(answer.topic_id)
            self.created(plan, topic_id)
        elif code is ErrorCode.TOPIC_ALREADY_EXISTS:
            topic_id = await self._id_of(connection, plan.name)
            self.created(plan, topic_id)
        else:
            self.environment.world.count(f"create refused: {code.name}")
            raise EOFError(f"create: {code.name}")

    def created(self, plan: Plan, topic_id: bytes) -> None:
        topic = Topic(plan.name, topic_id, plan.partitions, plan.configs)
        self.environment.history.topics[topic_id] = topic
        self._kept.created(topic)
        self._configs.created(topic.name, plan.configs)
        self.environment.world.count("topics created")

    async def _id_of(self, connection: ClientConnection, name: str) -> bytes:
        try:
            return (await topic_ids(connection))[name]
        except KeyError:
            raise EOFError(f"topic {name} exists for CreateTopics but not for Metadata") from None

    async def _delete_one(self, runtime: Runtime, connection: ClientConnection) -> None:
        topics = [t for t in self.environment.history.topics.values() if not t.delete_asked]
        if len(topics) < 2:
            return
        topic = self._draw.choice(topics)
        topic.delete_asked = True
        message = DeleteTopicsRequest(
            topics=[DeleteTopicState(topic_id=topic.topic_id)]
            if connection.version(ApiKey.DELETE_TOPICS) >= 6
            else [],
            topic_names=[topic.name],
            timeout_ms=DELETE_TIMEOUT_MS,
        )
        asked_at = runtime.clock.monotonic()
        answer = (await connection.call(ApiKey.DELETE_TOPICS, message)).responses[0]
        code = ErrorCode(answer.error_code)
        self.environment.world.say("admin", f"deletes {topic}: {code.name}")
        if code is ErrorCode.NONE:
            took_ms = 1000 * (runtime.clock.monotonic() - asked_at)
            self._kept.deleted(topic, is_applied=took_ms < DELETE_TIMEOUT_MS)
            self.environment.world.count("topics deleted")
            if self._draw.random() < 0.5:  # the same name again, as another topic
                self._plans.append(Plan(topic.name, topic.partitions, dict(topic.configs)))

    async def _look(self, connection: ClientConnection) -> None:
        message = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        response = await connection.call(ApiKey.METADATA, message)
        self._kept.seen({t.name: (bytes(t.topic_id), len(t.partitions)) for t in response.topics})
