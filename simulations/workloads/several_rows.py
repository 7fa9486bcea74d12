"""Produce request to all partitions of a topic, one of whose logs fails a write."""

import errno
from random import Random
from typing import Final

from metaquorum.runtime import Runtime
from metaquorum.simulations.checkers.delivery import FailedDirectoriesTakeNothing
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.harness.environment import Environment
from metaquorum.simulations.harness.history import Attempt, Topic
from metaquorum.simulations.harness.node import log_folder
from metaquorum.simulations.kernel.disk import DiskFaults
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.records import Record, encode_batch

NAME: Final = "rows"
_TOPIC_IDS_SINCE: Final = 13


class SeveralRows:
    """Sends one produce request whose first row is for a log that fails one write.

    The later rows are for the other partitions, and for the first one again.
    """

    def __init__(self, environment: Environment, faults: DiskFaults, draw: Random) -> None:
        self.environment = environment
        self._faults = faults
        self._draw = draw
        self._checker = environment.checker(FailedDirectoriesTakeNothing)
        self.refused = False

    async def run(self, runtime: Runtime) -> None:
        try:
            connection = await self.environment.connect(runtime, NAME, self._draw)
            try:
                await self._produce(runtime, connection)
            finally:
                connection.close()
        except BROKEN as error:
            self.environment.world.say(NAME, repr(error))

    async def _produce(self, runtime: Runtime, connection: ClientConnection) -> None:
        topics = self.environment.history.live_topics
        if not topics:
            return
        topic = self._draw.choice(topics)
        others = list(range(topic.partitions))
        self._draw.shuffle(others)
        first = others.pop()
        attempts = [
            self._attempt(topic, index, number, runtime.clock.now_ms(), connection)
            for number, index in enumerate((first, *others, first))
        ]
        self._refuse_once(self._folder(attempts[0]))
        await connection.send(ApiKey.PRODUCE, _request(topic, attempts))
        answer = await connection.receive()
        rows = answer.responses[0].partition_responses
        for attempt, row in zip(attempts, rows, strict=True):
            if row.error_code == ErrorCode.NONE:
                self.environment.acked([attempt], row.base_offset)
            else:
                attempt.given_up = True
        places = [self._directory(attempt) for attempt in attempts]
        self._checker.answered(
            [
                (place, row.error_code)
                for place, row in zip(places, rows, strict=True)
                if place is not None
            ]
        )

    def _directory(self, attempt: Attempt) -> str | None:
        """Return the log directory of the attempt's log; None if the log has no folder yet.

        A refused first append leaves none, so the directory of such a log is unknown.
        """
        folder = self._folder(attempt)
        try:
            self.environment.node.storage.folder(folder)
        except FileNotFoundError:
            return None
        return folder.rsplit("/", 1)[0]

    def _folder(self, attempt: Attempt) -> str:
        return log_folder(self.environment.node.storage, attempt.topic.name, attempt.partition)

    def _refuse_once(self, folder: str) -> None:
        def refusing(path: str) -> int:
            if self.refused or not (path.startswith(f"{folder}/") and path.endswith(".log")):
                return 0
            self.refused = True
            return errno.EIO

        self._faults.refusing = refusing

    def _attempt(
        self, topic: Topic, index: int, number: int, now_ms: int, connection: ClientConnection
    ) -> Attempt:
        value = b"%s %d of %s" % (NAME.encode(), number, str(topic).encode())
        attempt = Attempt(topic, index, NAME, 0, number, value, now_ms, 1, False)
        attempt.times_sent, attempt.first_sent_at = 1, self.environment.world.now
        attempt.sent_by_name = connection.version(ApiKey.PRODUCE) < _TOPIC_IDS_SINCE
        self.environment.history.attempts[value] = attempt
        return attempt


def _request(topic: Topic, attempts: list[Attempt]) -> ProduceRequest:
    rows = [
        PartitionProduceData(
            index=attempt.partition,
            records=encode_batch([Record(0, attempt.timestamp_ms, None, attempt.value)]),
        )
        for attempt in attempts
    ]
    return ProduceRequest(
        acks=1,
        timeout_ms=5000,
        topic_data=[
            TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=rows)
        ],
    )
