"""Consumer with fetch sessions: requests name changed partitions, responses those with records.

If the node forgets a partition of a session, the consumer never gets its records: all readable
records must arrive, in any order and however small the responses are.
"""

from random import Random
from typing import Any, Final

from metaquorum.runtime import Runtime, sleep
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.harness.environment import Environment
from metaquorum.simulations.harness.history import PartitionOf, Topic
from metaquorum.simulations.workloads.consumer import (
    EARLIEST,
    LOST,
    RETRY_S,
    Asked,
    end_of,
    list_offset,
    take_records,
)
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

SESSIONS_SINCE: Final = 7
_TOPIC_IDS_SINCE: Final = 13
_BEGIN_ANEW: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


class SessionConsumer:
    def __init__(self, environment: Environment, name: str, draw: Random) -> None:
        self.environment = environment
        self.name = name
        self._draw = draw
        self._offsets: dict[PartitionOf, int] = {}
        self._session, self._epoch, self._by_id = 0, 0, False
        # Partitions of the session, with the requested offset; topics by id.
        self._asked: dict[PartitionOf, int] = {}
        self._topics: dict[bytes, Topic] = {}
        self._max_bytes = draw.choice([1, 1000, 1 << 20])
        self._partition_max_bytes = draw.choice([1, 500, 1 << 20])
        self._min_bytes = draw.choice([1, 1, 500])
        self._wait_ms = draw.choice([0, 20, 200])

    def position(self, place: PartitionOf) -> int:
        return self._offsets.get(place, 0)

    async def run(self, runtime: Runtime) -> None:
        while not self.environment.closing:
            try:
                connection = await self.environment.connect(runtime, self.name, self._draw)
            except BROKEN:
                await sleep(runtime.clock, RETRY_S)
                continue
            version = max(connection.version(ApiKey.FETCH), SESSIONS_SINCE)
            connection.use_version(ApiKey.FETCH, version)
            if self._draw.random() < 0.5:  # else continue with the session
                self._reset()
            try:
                while not self.environment.closing:
                    await self._poll(runtime, connection)
            except BROKEN as error:
                self.environment.world.say(self.name, f"connection lost: {error!r}")
            finally:
                connection.close()
            await sleep(runtime.clock, RETRY_S)

    def _reset(self) -> None:
        self._session, self._epoch = 0, 0
        self._asked.clear()

    async def _poll(self, runtime: Runtime, connection: ClientConnection) -> None:
        self._by_id = connection.version(ApiKey.FETCH) >= _TOPIC_IDS_SINCE
        wanted = self._wanted()
        if not wanted:
            self._reset()
            await sleep(runtime.clock, 0.1)
            return
        if self._epoch == 0:
            self._asked.clear()
        changed = {p: offset for p, offset in wanted.items() if self._asked.get(p) != offset}
        # By name, a new topic of the same name replaces the deleted one in the session.
        keys = {self._key(place) for place in wanted}
        gone = [place for place in self._asked if self._key(place) not in keys]
        message = FetchRequest(
            max_wait_ms=self._wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            session_id=self._session,
            session_epoch=self._epoch,
            topics=[self._row(place, offset) for place, offset in changed.items()],
            forgotten_topics_data=[self._forgotten(place) for place in gone],
        )
        asked = Asked.now(self.environment)
        await connection.send(ApiKey.FETCH, message)
        response = await connection.receive()
        if response.error_code:
            code = ErrorCode(response.error_code)
            if code not in _BEGIN_ANEW:
                raise EOFError(f"fetch: {code.name}")
            self.environment.world.say(self.name, f"begins a new session: {code.name}")
            self.environment.world.count("fetch sessions lost")
            self._reset()
            return
        # Only now: if the request was lost, the session has the offsets of the one before.
        self._asked = dict(wanted)
        self._next_epoch(response.session_id)
        if not self._take(response, asked):
            await sleep(runtime.clock, 0.02)
        for place in [place for place, offset in self._offsets.items() if offset == LOST]:
            start = await list_offset(
                connection, self._topics[place.topic_id], place.partition, EARLIEST
            )
            self._offsets[place] = 0 if start is None else start

    def _next_epoch(self, session_id: int) -> None:
        if session_id == 0:
            self._reset()
            return
        if self._epoch == 0:
            self.environment.world.count("fetch sessions")
        else:
            self.environment.world.count("fetches of sessions")
        self._session, self._epoch = session_id, self._epoch + 1

    def _wanted(self) -> dict[PartitionOf, int]:
        wanted = {}
        for topic in self.environment.history.live_topics:
            self._topics[topic.topic_id] = topic
            for index in range(topic.partitions):
                place = PartitionOf(topic.topic_id, index)
                wanted[place] = self._offsets.setdefault(place, 0)
        return wanted

    def _row(self, place: PartitionOf, offset: int) -> FetchTopic:
        part = FetchPartition(
            partition=place.partition,
            fetch_offset=offset,
            partition_max_bytes=self._partition_max_bytes,
        )
        name = self._topics[place.topic_id].name
        return FetchTopic(topic=name, topic_id=place.topic_id, partitions=[part])

    def _forgotten(self, place: PartitionOf) -> ForgottenTopic:
        name = self._topics[place.topic_id].name
        return ForgottenTopic(topic=name, topic_id=place.topic_id, partitions=[place.partition])

    def _take(self, response: Any, asked: Asked) -> int:
        """Take the records of a response; return the number of partitions with records."""
        got = 0
        places = {self._key(place): place for place in self._asked}
        for answer in response.responses:
            name = bytes(answer.topic_id) if self._by_id else answer.topic
            for data in answer.partitions:
                place = places.get((name, data.partition_index))
                if place is None:
                    text = f"{answer.topic}-{data.partition_index}"
                    self.environment.world.violate("P1 AnswersWhatWasAsked", text)
                else:
                    got += self._take_one(place, data, asked)
        return got

    def _key(self, place: PartitionOf) -> tuple[bytes | str, int]:
        topic = self._topics[place.topic_id]
        return (topic.topic_id if self._by_id else topic.name), place.partition

    def _take_one(self, place: PartitionOf, data: Any, asked: Asked) -> int:
        topic = self._topics[place.topic_id]
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._offsets[place] = LOST
            return 1
        if data.error_code or topic.delete_asked:
            return 0
        offset = self._offsets[place]
        reads = take_records(self.environment, topic, place.partition, offset, data, asked)
        self._offsets[place] = end_of(data, offset)
        if reads:
            first, last = reads[0].offset, reads[-1].offset
            where = f"{topic}-{place.partition} {first}..{last}"
            self.environment.world.say(self.name, f"reads {where} in session {self._session}")
        return 1
