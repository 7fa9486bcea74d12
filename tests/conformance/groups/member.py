"""A member of a group, as a process: `python -m tests.conformance.groups.member CLIENT OPTIONS`.

OPTIONS is JSON (`Options`). Prints each assignment, record and commit as a line of JSON. A line on
stdin is a command: `commit`, `stall` (poll no more), `resume`, `unsubscribe` or `close`.
"""

import asyncio
import contextlib
import json
import re
import select
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import confluent_kafka
import kafka
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.errors import KafkaError as AiokafkaError
from kafka.coordinator.assignors import cooperative_sticky, range, roundrobin

POLL_S: Final = 0.05
# kafka-python 3.0.12 forgets a rebalance that ends between two calls of poll: it then calls no
# listener, fetches nothing and sends no heartbeat. With long calls that is rare.
KAFKA_PYTHON_POLL_S: Final = 1.0
GENERATION: Final = struct.Struct("=i")
PREFIX: Final = b"CGMDv2:"
KAFKA_PYTHON_ASSIGNORS: Final = {
    "range": range.RangePartitionAssignor,
    "roundrobin": roundrobin.RoundRobinPartitionAssignor,
    "cooperative-sticky": cooperative_sticky.CooperativeStickyAssignor,
}


@dataclass
class Options:
    """Topics and settings of a member, under names that are the same for all clients."""

    bootstrap: str
    group: str
    topics: list[str] = field(default_factory=list)
    pattern: str = ""
    instance: str | None = None
    assignor: str = "range"
    session_ms: int = 10_000
    heartbeat_ms: int = 300
    max_poll_ms: int = 20_000
    metadata_max_age_ms: int = 1_000
    commit_each: bool = True  # commit what was polled, before the next poll
    auto_commit_ms: int = 0


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def commands() -> Iterable[str]:
    """Return the commands that have arrived; `close` at the end of stdin."""
    while select.select([sys.stdin], [], [], 0)[0]:
        line = sys.stdin.readline()
        yield line.strip() or "close"
        if not line or line.strip() == "close":
            return


def said_partitions(partitions: Iterable[Any]) -> list[list[Any]]:
    return sorted([one.topic, one.partition] for one in partitions)


class Consumer(Protocol):
    """A client with the blocking operations of a member."""

    def poll(self) -> None: ...

    def commit(self) -> None: ...

    def unsubscribe(self) -> None: ...

    def close(self) -> None: ...


class Librdkafka:
    """confluent-kafka."""

    def __init__(self, options: Options) -> None:
        self._commits = options.commit_each
        settings = {
            "bootstrap.servers": options.bootstrap,
            "group.id": options.group,
            "session.timeout.ms": options.session_ms,
            "heartbeat.interval.ms": options.heartbeat_ms,
            "max.poll.interval.ms": max(options.max_poll_ms, options.session_ms),
            "topic.metadata.refresh.interval.ms": options.metadata_max_age_ms,
            "partition.assignment.strategy": options.assignor,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": bool(options.auto_commit_ms),
            "log_level": 2,
        }
        if options.auto_commit_ms:
            settings["auto.commit.interval.ms"] = options.auto_commit_ms
        if options.instance is not None:
            settings["group.instance.id"] = options.instance
        self._consumer = confluent_kafka.Consumer(settings)
        self._consumer.subscribe(
            options.topics or [f"^{options.pattern}"],
            on_assign=self._noted("assigned"),
            on_revoke=self._noted("revoked"),
            on_lost=self._noted("lost"),
        )

    def _generation(self) -> int:
        data = self._consumer.consumer_group_metadata()
        assert data.startswith(PREFIX)
        return int(GENERATION.unpack_from(data, len(PREFIX))[0])

    def _noted(self, event: str) -> Callable[[Any, Any], None]:
        def note(consumer: Any, partitions: Any) -> None:
            say(
                event,
                partitions=said_partitions(partitions),
                generation=self._generation(),
                member=consumer.memberid(),
            )

        return note

    def poll(self) -> None:
        messages = self._consumer.consume(100, POLL_S)
        for message in messages:
            if error := message.error():
                say("error", name=error.name(), fatal=error.fatal())
            else:
                say(
                    "record",
                    topic=message.topic(),
                    partition=message.partition(),
                    offset=message.offset(),
                    value=message.value().decode(),
                )
        if self._commits and any(message.error() is None for message in messages):
            self.commit()

    def commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException as error:
            say("commit failed", name=error.args[0].name())
        else:
            say("committed")

    def unsubscribe(self) -> None:
        self._consumer.unsubscribe()

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    """kafka-python."""

    def __init__(self, options: Options) -> None:
        self._commits = options.commit_each
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=options.bootstrap.split(","),
            group_id=options.group,
            group_instance_id=options.instance,
            session_timeout_ms=options.session_ms,
            heartbeat_interval_ms=options.heartbeat_ms,
            max_poll_interval_ms=options.max_poll_ms,
            metadata_max_age_ms=options.metadata_max_age_ms,
            partition_assignment_strategy=[KAFKA_PYTHON_ASSIGNORS[options.assignor]],
            auto_offset_reset="earliest",
            enable_auto_commit=bool(options.auto_commit_ms),
            auto_commit_interval_ms=options.auto_commit_ms or 5000,
        )
        consumer = self

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Any) -> None:
                consumer.note("assigned", assigned)

            def on_partitions_revoked(self, revoked: Any) -> None:
                consumer.note("revoked", revoked)

            def on_partitions_lost(self, lost: Any) -> None:
                consumer.note("lost", lost)

        what = {"topics": options.topics} if options.topics else {"pattern": options.pattern}
        self._consumer.subscribe(**what, listener=Listener())

    def note(self, event: str, partitions: Any) -> None:
        known = self._consumer.group_metadata()
        say(
            event,
            partitions=said_partitions(partitions),
            generation=known.generation_id,
            member=known.member_id,
        )

    def poll(self) -> None:
        try:
            polled = self._consumer.poll(timeout_ms=int(KAFKA_PYTHON_POLL_S * 1000))
        except kafka.errors.KafkaError as error:
            say("error", name=type(error).__name__, fatal=True)
            return
        for message in (one for messages in polled.values() for one in messages):
            say_record(message)
        if polled and self._commits:
            self.commit()

    def commit(self) -> None:
        try:
            self._consumer.commit()
        except kafka.errors.KafkaError as error:
            say("commit failed", name=type(error).__name__)
        else:
            say("committed")

    def unsubscribe(self) -> None:
        self._consumer.unsubscribe()

    def close(self) -> None:
        self._consumer.close()


BLOCKING: Final[dict[str, Callable[[Options], Consumer]]] = {
    "librdkafka": Librdkafka,
    "kafka-python": KafkaPython,
}


def say_record(message: Any) -> None:
    say(
        "record",
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        value=message.value.decode(),
    )


def run_blocking(consumer: Consumer) -> None:
    stalled = False
    while True:
        for command in commands():
            if command == "close":
                consumer.close()
                say("closed")
                return
            if command == "commit":
                consumer.commit()
            elif command == "unsubscribe":
                consumer.unsubscribe()
                say("unsubscribed")
            else:
                stalled = command == "stall"
        if stalled:
            select.select([sys.stdin], [], [], POLL_S)
        else:
            consumer.poll()


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Prints the assignments of aiokafka."""

    consumer: Any = None

    def _note(self, event: str, partitions: Any) -> None:
        known = self.consumer._coordinator
        say(
            event,
            partitions=said_partitions(partitions),
            generation=known.generation,
            member=known.member_id,
        )

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._note("assigned", assigned)

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._note("revoked", revoked)


async def run_aiokafka(options: Options) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        group_instance_id=options.instance,
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=options.heartbeat_ms,
        max_poll_interval_ms=options.max_poll_ms,
        metadata_max_age_ms=options.metadata_max_age_ms,
        partition_assignment_strategy=(AioRange,),
        auto_offset_reset="earliest",
        enable_auto_commit=bool(options.auto_commit_ms),
        auto_commit_interval_ms=options.auto_commit_ms or 5000,
    )
    listener = Listener()
    listener.consumer = consumer
    what = {"topics": options.topics} if options.topics else {"pattern": options.pattern}
    consumer.subscribe(**what, listener=listener)
    await consumer.start()
    stalled = False
    while True:
        for command in commands():
            if command == "close":
                await consumer.stop()
                say("closed")
                return
            if command == "commit":
                await commit_aiokafka(consumer)
            elif command == "unsubscribe":
                consumer.unsubscribe()
                say("unsubscribed")
            else:
                stalled = command == "stall"
        if stalled:
            await asyncio.sleep(POLL_S)
            continue
        polled = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
        for message in (one for messages in polled.values() for one in messages):
            say_record(message)
        if polled and options.commit_each:
            await commit_aiokafka(consumer)


async def commit_aiokafka(consumer: Any) -> None:
    try:
        await consumer.commit()
    except AiokafkaError as error:
        say("commit failed", name=type(error).__name__)
    else:
        say("committed")


def main() -> None:
    client, options = sys.argv[1], Options(**json.loads(sys.argv[2]))
    if options.pattern:
        re.compile(options.pattern)
    with contextlib.suppress(BrokenPipeError):
        if client == "aiokafka":
            asyncio.run(run_aiokafka(options))
        else:
            run_blocking(BLOCKING[client](options))


if __name__ == "__main__":
    main()
