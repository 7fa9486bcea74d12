"""Three independent Kafka clients behind one small interface: send these records, read from there.

Each is used as its users use it, except that its partitioner is not used (records name partition 0
by default) and consumers use `assign` and no group.
"""

import asyncio
import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import confluent_kafka
import kafka
import kafka.structs
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.nodes import PATIENCE_S, wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LIMIT_BYTES = 24 * 1024 * 1024
TIMEOUT_S = int(PATIENCE_S)
BEGINNING, END = -2, -1


@dataclass(frozen=True)
class Record:
    """A record to send; `timestamp` 0 lets the client set the timestamp."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = 0


@dataclass(frozen=True)
class Stored:
    offset: int
    record: Record


class Librdkafka:
    name = "confluent-kafka"
    codecs = CODECS

    def producer(self, bootstrap: str, **config: Any) -> confluent_kafka.Producer:
        return confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "message.max.bytes": LIMIT_BYTES,
                "log_level": 2,
                "topic.metadata.refresh.fast.interval.ms": 50,
            }
            | {key.replace("_", "."): value for key, value in config.items()}
        )

    def send(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        codec: str,
        partition: int = 0,
        **config: Any,
    ) -> list[int]:
        """Send the records; return the acknowledged offsets in the order of `records`."""
        offsets: dict[int, int] = {}

        def acknowledged(number: int) -> Callable[[Any, Any], None]:
            def note(error: Any, message: Any) -> None:
                if error is None:
                    offsets[number] = message.offset()

            return note

        producer = self.producer(bootstrap, compression_type=codec, **config)
        for number, record in enumerate(records):
            producer.produce(
                topic,
                record.value,
                record.key,
                partition,
                on_delivery=acknowledged(number),
                timestamp=record.timestamp,
                headers=list(record.headers),
            )
            producer.poll(0)
        assert producer.flush(TIMEOUT_S) == 0, "not everything was sent"
        assert len(offsets) == len(records), f"{len(offsets)} of {len(records)} acknowledged"
        return [offsets[number] for number in range(len(records))]

    def read(
        self,
        bootstrap: str,
        topic: str,
        count: int,
        start: int = BEGINNING,
        partition: int = 0,
        **config: Any,
    ) -> list[Stored]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": LIMIT_BYTES,
                "fetch.max.bytes": LIMIT_BYTES,
                "receive.message.max.bytes": 2 * LIMIT_BYTES,
                "log_level": 2,
            }
            | {key.replace("_", "."): value for key, value in config.items()}
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, start)])
            found: list[Stored] = []
            while len(found) < count:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None, f"{len(found)} of {count} read"
                assert message.error() is None, message.error()
                found.append(
                    Stored(
                        message.offset(),
                        Record(
                            message.key(),
                            message.value(),
                            tuple(message.headers() or ()),
                            message.timestamp()[1],
                        ),
                    )
                )
            return found
        finally:
            consumer.close()


class KafkaPython:
    name = "kafka-python"
    codecs = tuple(c for c in CODECS if c != "snappy" or importlib.util.find_spec("snappy"))

    def send(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        codec: str,
        partition: int = 0,
        **config: Any,
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            max_request_size=LIMIT_BYTES,
            bootstrap_timeout_ms=TIMEOUT_S * 1000,
            **config,
        )
        try:
            futures = [
                producer.send(
                    topic, record.value, record.key, list(record.headers), partition,
                    record.timestamp or None,
                )
                for record in records
            ]  # fmt: skip
            return [future.get(TIMEOUT_S).offset for future in futures]
        finally:
            producer.close(TIMEOUT_S)

    def read(
        self,
        bootstrap: str,
        topic: str,
        count: int,
        start: int = BEGINNING,
        partition: int = 0,
        **config: Any,
    ) -> list[Stored]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            enable_auto_commit=False,
            max_partition_fetch_bytes=LIMIT_BYTES,
            consumer_timeout_ms=TIMEOUT_S * 1000,
            bootstrap_timeout_ms=TIMEOUT_S * 1000,
            **config,
        )
        try:
            where = kafka.TopicPartition(topic, partition)
            consumer.assign([where])
            if start == BEGINNING:
                consumer.seek_to_beginning(where)
            elif start == END:
                consumer.seek_to_end(where)
            else:
                consumer.seek(where, start)
            found: list[Stored] = []
            for message in consumer:
                found.append(
                    Stored(
                        message.offset,
                        Record(
                            message.key, message.value, tuple(message.headers), message.timestamp
                        ),
                    )
                )
                if len(found) == count:
                    break
            return found
        finally:
            consumer.close()


class Aiokafka:
    name = "aiokafka"
    codecs = CODECS

    def send(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        codec: str,
        partition: int = 0,
        **config: Any,
    ) -> list[int]:
        async def run() -> list[int]:
            async with AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                max_request_size=LIMIT_BYTES,
                **config,
            ) as producer:
                sent = [
                    await producer.send(
                        topic, record.value, record.key, partition, record.timestamp or None,
                        list(record.headers),
                    )
                    for record in records
                ]  # fmt: skip
                return [(await future).offset for future in sent]

        return asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))

    def read(
        self,
        bootstrap: str,
        topic: str,
        count: int,
        start: int = BEGINNING,
        partition: int = 0,
        **config: Any,
    ) -> list[Stored]:
        async def run() -> list[Stored]:
            where = AioTopicPartition(topic, partition)
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                enable_auto_commit=False,
                max_partition_fetch_bytes=LIMIT_BYTES,
                auto_offset_reset="none",
                **config,
            )
            consumer.assign([where])
            await consumer.start()
            try:
                if start == BEGINNING:
                    await consumer.seek_to_beginning(where)
                elif start == END:
                    await consumer.seek_to_end(where)
                else:
                    consumer.seek(where, start)
                found: list[Stored] = []
                while len(found) < count:
                    message = await consumer.getone()
                    found.append(
                        Stored(
                            message.offset,
                            Record(
                                message.key, message.value, tuple(message.headers),
                                message.timestamp,
                            ),
                        )
                    )  # fmt: skip
                return found
            finally:
                await consumer.stop()

        return asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


Client = Librdkafka | KafkaPython | Aiokafka
CLIENTS: tuple[Client, ...] = (Librdkafka(), KafkaPython(), Aiokafka())


@functools.lru_cache(maxsize=4)
def admin(bootstrap: str) -> AdminClient:
    """The client is kept: a dropped client also drops the responses that it waits for."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})


def reconnected(bootstrap: str) -> AdminClient:
    """Return the kept client once it has reconnected to the restarted node."""
    client = admin(bootstrap)

    def is_answered() -> bool:
        try:
            client.list_topics(timeout=TIMEOUT_S)
        except KafkaException:
            return False
        return True

    wait_until(is_answered)
    return client


def create(
    bootstrap: str,
    topic: str,
    partitions: int = 1,
    config: dict[str, str] | None = None,
    replicas: int = 1,
) -> str:
    """Create the topic. Other nodes than the one that answers may list it a little later."""
    wanted = NewTopic(topic, partitions, replicas, config=config or {})
    admin(bootstrap).create_topics([wanted])[topic].result(TIMEOUT_S)
    return topic


def partitions_of(consumer: confluent_kafka.Consumer, topic: str) -> list[int]:
    """Return the partitions of the topic, once the node that the client asks lists it."""
    return wait_until(
        lambda: list(consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions),
        what=f"{topic} is listed",
    )


def sent_as(records: Sequence[Record], stored: Sequence[Stored]) -> list[Record]:
    """Return the record that a reader should see: without a timestamp, the client sets one."""
    return [
        sent if sent.timestamp else replace(sent, timestamp=got.record.timestamp)
        for sent, got in zip(records, stored, strict=True)
    ]
