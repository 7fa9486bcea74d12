"""Consumer whose fetches wait long: a response must come with the records, not at the timeout.

It fetches all existing partitions and, so that the request has many partitions and the node answers
it in pieces, partitions that do not exist. A fetch that is not woken by an append is answered at
the end of its wait, with records that were acknowledged long before.
"""

from random import Random
from typing import Any, Final

from metaquorum.runtime import Runtime, sleep
from metaquorum.simulations.checkers.delivery import LongPollsAreWoken
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.harness.environment import Environment
from metaquorum.simulations.harness.history import PartitionOf, Topic
from metaquorum.simulations.workloads.consumer import RETRY_S, Asked, end_of, take_records
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from metaquorum.wire.protocol.apis import ApiKey

WAIT_S: Final = 5.0
# A record acknowledged longer than this before the response should have ended the wait.
WOKEN_WITHIN_S: Final = 1.0
PARTITION_MAX_BYTES: Final = 1 << 20
NO_SESSION: Final = -1


class LongPoller:
    """Consumer with one fetch in flight; `_rows` is the least number of partitions in it."""

    def __init__(self, environment: Environment, name: str, draw: Random) -> None:
        self.environment = environment
        self.name = name
        self._rows = draw.choice([1, 100, 1000])
        self._min_bytes = draw.choice([1, 1, 400])
        self._has_session = draw.random() < 0.5
        self._draw = draw
        self._session, self._epoch = 0, 0
        self._offsets: dict[PartitionOf, int] = {}

    async def run(self, runtime: Runtime) -> None:
        while not self.environment.closing:
            try:
                connection = await self.environment.connect(runtime, self.name, self._draw)
            except BROKEN:
                await sleep(runtime.clock, RETRY_S)
                continue
            connection.use_version(ApiKey.FETCH, max(connection.version(ApiKey.FETCH), 7))
            self._session, self._epoch = 0, 0
            try:
                while not self.environment.closing:
                    await self._poll(runtime, connection)
            except BROKEN as error:
                self.environment.world.say(self.name, f"connection lost: {error!r}")
            finally:
                connection.close()
            await sleep(runtime.clock, RETRY_S)

    async def _poll(self, runtime: Runtime, connection: ClientConnection) -> None:
        topics = self.environment.history.live_topics
        if not topics:
            await sleep(runtime.clock, RETRY_S)
            return
        asked = Asked.now(self.environment)
        await connection.send(ApiKey.FETCH, self._request(topics))
        response = await connection.receive(2 * WAIT_S)
        if response.error_code:
            self._session, self._epoch = 0, 0
            return
        if self._has_session:
            self._session = response.session_id
            self._epoch = self._epoch + 1 if self._session else 0
        late = self._late(topics, asked)
        self.environment.checker(LongPollsAreWoken).answered(self.name, late)
        self.environment.world.count(
            "long polls", self.environment.world.now - asked.at >= WAIT_S / 2
        )
        self._take(topics, response, asked)

    def _request(self, topics: list[Topic]) -> FetchRequest:
        more = max(0, self._rows - sum(topic.partitions for topic in topics))
        rows = [
            FetchTopic(
                topic=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    FetchPartition(
                        partition=index,
                        fetch_offset=self._offsets.get(PartitionOf(topic.topic_id, index), 0),
                        partition_max_bytes=PARTITION_MAX_BYTES,
                    )
                    for index in range(topic.partitions + (more if number == 0 else 0))
                ],
            )
            for number, topic in enumerate(topics)
        ]
        return FetchRequest(
            max_wait_ms=int(WAIT_S * 1000),
            min_bytes=self._min_bytes,
            max_bytes=PARTITION_MAX_BYTES,
            session_id=self._session,
            session_epoch=self._epoch if self._has_session else NO_SESSION,
            topics=rows,
        )

    def _late(self, topics: list[Topic], asked: Asked) -> list[str]:
        """Return records that should have ended the wait earlier, if there are enough of them."""
        world = self.environment.world
        if world.now - asked.at < WOKEN_WITHIN_S:
            return []
        late = [
            attempt
            for place, attempts in self.environment.history.attempts_by_place().items()
            for attempt in attempts
            if attempt.acked_at is not None
            and attempt.topic in topics
            and attempt.offset is not None
            and attempt.offset >= self._offsets.get(place, 0)
            and attempt.acked_at < world.now - WOKEN_WITHIN_S
        ]
        if sum(len(attempt.value) for attempt in late) < self._min_bytes:
            return []
        return [str(attempt) for attempt in late]

    def _take(self, topics: list[Topic], response: Any, asked: Asked) -> None:
        by_name = {topic.name: topic for topic in topics}
        by_id = {topic.topic_id: topic for topic in topics}
        for answer in response.responses:
            topic = by_name.get(answer.topic) or by_id[bytes(answer.topic_id)]
            for data in answer.partitions:
                place = PartitionOf(topic.topic_id, data.partition_index)
                if data.error_code:
                    continue
                offset = self._offsets.get(place, 0)
                take_records(self.environment, topic, data.partition_index, offset, data, asked)
                self._offsets[place] = end_of(data, offset)
