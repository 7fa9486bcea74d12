"""ListOffsets as clients use it, and fetches at offsets that do not exist."""

import asyncio

import confluent_kafka
import kafka
import kafka.errors
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import OffsetOutOfRangeError
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.conformance.clients import (
    CLIENTS,
    CODECS,
    TIMEOUT_S,
    Client,
    Librdkafka,
    Record,
    admin,
    create,
)
from tests.nodes import Peer, unique

FIRST_MS = 1_600_000_000_000
STEP_MS = 7
COUNT = 500
# Requested timestamp, and the offset of the first record that is not older (None: none)
LOOKUPS = [
    (0, 0),
    (FIRST_MS, 0),
    (FIRST_MS + 1, 1),
    (FIRST_MS + STEP_MS, 1),
    (FIRST_MS + 100 * STEP_MS - 1, 100),
    (FIRST_MS + 100 * STEP_MS, 100),
    (FIRST_MS + 100 * STEP_MS + 1, 101),
    (FIRST_MS + (COUNT - 1) * STEP_MS, COUNT - 1),
    (FIRST_MS + COUNT * STEP_MS, None),
]


@pytest.fixture(params=CODECS)
def topic(node: Peer, request: pytest.FixtureRequest) -> str:
    """Create a topic with COUNT records, STEP_MS apart, in several batches."""
    name = create(node.bootstrap, unique("offsets"))
    records = [Record(None, b"%d" % i, (), FIRST_MS + STEP_MS * i) for i in range(COUNT)]
    for start in range(0, COUNT, 125):
        Librdkafka().send(node.bootstrap, name, records[start : start + 125], request.param)
    return name


def rdk_consumer(bootstrap: str, **config: object) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "log_level": 2,
        }
        | {key.replace("_", "."): value for key, value in config.items()}
    )


def test_librdkafka_finds_offsets_by_time_and_both_ends(node: Peer, topic: str) -> None:
    consumer = rdk_consumer(node.bootstrap)
    try:
        for timestamp, offset in LOOKUPS:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], TIMEOUT_S)
            assert found.error is None
            assert found.offset == (confluent_kafka.OFFSET_END if offset is None else offset)
        ends = consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S)
        assert ends == (0, COUNT)
    finally:
        consumer.close()


def test_librdkafka_admin_lists_offsets(node: Peer, topic: str) -> None:
    where = TopicPartition(topic, 0)
    last_ms = FIRST_MS + STEP_MS * (COUNT - 1)
    for spec, offset, timestamp in (
        (OffsetSpec.earliest(), 0, -1),
        (OffsetSpec.latest(), COUNT, -1),
        (OffsetSpec.max_timestamp(), COUNT - 1, last_ms),
        (OffsetSpec.for_timestamp(FIRST_MS + 50 * STEP_MS - 3), 50, FIRST_MS + 50 * STEP_MS),
        (OffsetSpec.for_timestamp(last_ms + 1), -1, -1),
    ):
        result = admin(node.bootstrap).list_offsets({where: spec})[where].result(TIMEOUT_S)
        assert (result.offset, result.timestamp) == (offset, timestamp)


def test_kafka_python_finds_offsets_by_time_and_both_ends(node: Peer, topic: str) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=node.bootstrap, enable_auto_commit=False)
    where = kafka.TopicPartition(topic, 0)
    try:
        for timestamp, offset in LOOKUPS:
            found = consumer.offsets_for_times({where: timestamp})[where]
            assert (found and found.offset) == offset
            if found:
                assert found.timestamp == FIRST_MS + STEP_MS * found.offset
        assert consumer.beginning_offsets([where]) == {where: 0}
        assert consumer.end_offsets([where]) == {where: COUNT}
    finally:
        consumer.close()


def test_aiokafka_finds_offsets_by_time_and_both_ends(node: Peer, topic: str) -> None:
    async def run() -> None:
        where = AioTopicPartition(topic, 0)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=node.bootstrap,
            enable_auto_commit=False,
            fetch_max_wait_ms=10,  # the client's lookups wait for its fetches
        )
        consumer.assign([where])
        await consumer.start()
        try:
            for timestamp, offset in LOOKUPS:
                found = (await consumer.offsets_for_times({where: timestamp}))[where]
                assert (found and found.offset) == offset
            assert await consumer.beginning_offsets([where]) == {where: 0}
            assert await consumer.end_offsets([where]) == {where: COUNT}
        finally:
            await consumer.stop()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_times_out_of_order_are_found_by_the_first_record_that_is_late_enough(node: Peer) -> None:
    topic = create(node.bootstrap, unique("unordered"))
    minutes = (5, 9, 1, 9, 3)
    records = [Record(None, b"", (), FIRST_MS + 60_000 * minute) for minute in minutes]
    for record in records:
        Librdkafka().send(node.bootstrap, topic, [record], "none")
    where = TopicPartition(topic, 0)
    client = admin(node.bootstrap)
    for spec, offset in (
        (OffsetSpec.for_timestamp(FIRST_MS), 0),
        (OffsetSpec.for_timestamp(FIRST_MS + 60_000 * 6), 1),
        (OffsetSpec.max_timestamp(), 1),
    ):
        assert client.list_offsets({where: spec})[where].result(TIMEOUT_S).offset == offset


def test_an_empty_partition_begins_and_ends_at_zero(node: Peer) -> None:
    topic = create(node.bootstrap, unique("empty"))
    where = TopicPartition(topic, 0)
    client = admin(node.bootstrap)
    for spec, offset in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 0),
        (OffsetSpec.max_timestamp(), -1),
        (OffsetSpec.for_timestamp(0), -1),
    ):
        result = client.list_offsets({where: spec})[where].result(TIMEOUT_S)
        assert (result.offset, result.timestamp) == (offset, -1)


def three(node: Peer) -> str:
    topic = create(node.bootstrap, unique("three"))
    Librdkafka().send(node.bootstrap, topic, [Record(None, b"old")] * 3, "none")
    return topic


def test_librdkafka_is_told_that_an_offset_is_out_of_range(node: Peer) -> None:
    consumer = rdk_consumer(node.bootstrap, auto_offset_reset="error")
    consumer.assign([TopicPartition(three(node), 0, 4)])
    try:
        message = consumer.poll(TIMEOUT_S)
        assert message.error().code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET
        assert "out of range" in message.error().str().lower()
    finally:
        consumer.close()


def test_kafka_python_is_told_that_an_offset_is_out_of_range(node: Peer) -> None:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=node.bootstrap, enable_auto_commit=False, auto_offset_reset="none"
    )
    where = kafka.TopicPartition(three(node), 0)
    consumer.assign([where])
    consumer.seek(where, 4)
    try:
        with pytest.raises(kafka.errors.OffsetOutOfRangeError):
            consumer.poll(TIMEOUT_S * 1000)
    finally:
        consumer.close()


def test_aiokafka_is_told_that_an_offset_is_out_of_range(node: Peer) -> None:
    topic = three(node)

    async def run() -> None:
        where = AioTopicPartition(topic, 0)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=node.bootstrap, enable_auto_commit=False, auto_offset_reset="none"
        )
        consumer.assign([where])
        await consumer.start()
        consumer.seek(where, 4)
        try:
            with pytest.raises(OffsetOutOfRangeError):
                await consumer.getone()
        finally:
            await consumer.stop()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_librdkafka_reading_from_the_end_sees_only_what_comes_after(node: Peer) -> None:
    topic = three(node)
    consumer = rdk_consumer(node.bootstrap, enable_partition_eof=True)
    consumer.assign([TopicPartition(topic, 0, confluent_kafka.OFFSET_END)])
    try:
        eof = consumer.poll(TIMEOUT_S)
        assert eof.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
        assert eof.offset() == 3
        Librdkafka().send(node.bootstrap, topic, [Record(None, b"new")], "none")
        message = consumer.poll(TIMEOUT_S)
        assert (message.offset(), message.value()) == (3, b"new")
    finally:
        consumer.close()


def test_kafka_python_reading_from_the_end_sees_only_what_comes_after(node: Peer) -> None:
    topic = three(node)
    consumer = kafka.KafkaConsumer(bootstrap_servers=node.bootstrap, enable_auto_commit=False)
    where = kafka.TopicPartition(topic, 0)
    consumer.assign([where])
    consumer.seek_to_end(where)
    try:
        assert consumer.position(where) == 3
        Librdkafka().send(node.bootstrap, topic, [Record(None, b"new")], "none")
        message = next(consumer)
        assert (message.offset, message.value) == (3, b"new")
    finally:
        consumer.close()


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_reader_waiting_at_the_end_is_woken(node: Peer, client: Client) -> None:
    """Offset 3 does not exist when it is first fetched; the fetch waits for it."""
    topic = three(node)

    async def run() -> None:
        reading = asyncio.create_task(asyncio.to_thread(client.read, node.bootstrap, topic, 1, 3))
        await asyncio.to_thread(
            Librdkafka().send, node.bootstrap, topic, [Record(None, b"new")], "none"
        )
        (stored,) = await asyncio.wait_for(reading, TIMEOUT_S)
        assert (stored.offset, stored.record.value) == (3, b"new")

    asyncio.run(run())
