"""Copies a topic exactly once with a Python client: CLIENT OPTIONS (JSON); see `copiers`.

Prints a line of JSON for each commit. Ends when it is killed, or with the line "close" on stdin.
"""

import asyncio
import faulthandler
import json
import sys
import threading
from typing import Any, Final

import confluent_kafka
import kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition

POLL_S: Final = 0.5
CALL_S: Final = 10.0


def say(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


class Options:
    def __init__(self, text: str) -> None:
        given = json.loads(text)
        self.bootstrap: str = given["bootstrap"]
        self.group: str = given["group"]
        self.source: str = given["source"]
        self.target: str = given["target"]
        self.id: str = given["id"]
        self.most: int = given.get("most", 10)  # records of a transaction
        self.closing = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        sys.stdin.readline()
        self.closing.set()


def librdkafka(options: Options) -> None:
    common = {"bootstrap.servers": options.bootstrap, "log_level": 2}
    consumer = confluent_kafka.Consumer(
        {
            **common,
            "group.id": options.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "session.timeout.ms": 3000,
            "heartbeat.interval.ms": 300,
        }
    )
    producer = confluent_kafka.Producer(
        {**common, "transactional.id": options.id, "transaction.timeout.ms": 5000, "linger.ms": 0}
    )
    producer.init_transactions(CALL_S)
    say("ready")
    consumer.subscribe([options.source])
    while not options.closing.is_set():
        messages = consumer.consume(options.most, POLL_S)
        failed = [each.error() for each in messages if each.error()]
        assert all(error.retriable() or error.code() < 0 for error in failed), failed
        messages = [each for each in messages if not each.error()]
        if not messages:
            continue
        producer.begin_transaction()
        for each in messages:
            producer.produce(options.target, each.value(), each.key())
        positions = consumer.position(consumer.assignment())
        # With a group coordinator that has left the metadata this call does not return, with any
        # timeout (librdkafka's issues 5456 and 5511): the process ends, and its supervisor
        # starts another one.
        faulthandler.dump_traceback_later(CALL_S + 5, exit=True)
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), CALL_S)
        faulthandler.cancel_dump_traceback_later()
        producer.commit_transaction(CALL_S)
        say("committed", count=len(messages))
    consumer.close()
    say("closed")


def kafka_python(options: Options) -> None:
    consumer = kafka.KafkaConsumer(
        options.source,
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        session_timeout_ms=3000,
        heartbeat_interval_ms=300,
    )
    producer = kafka.KafkaProducer(
        bootstrap_servers=options.bootstrap,
        transactional_id=options.id,
        transaction_timeout_ms=5000,
    )
    producer.init_transactions()
    say("ready")
    while not options.closing.is_set():
        polled = consumer.poll(int(POLL_S * 1000), options.most)
        if not polled:
            continue
        producer.begin_transaction()
        count = 0
        for messages in polled.values():
            for each in messages:
                producer.send(options.target, each.value, each.key)
                count += 1
        positions = {
            place: kafka.structs.OffsetAndMetadata(consumer.position(place), "", -1)
            for place in polled
        }
        producer.send_offsets_to_transaction(positions, consumer.group_metadata())
        producer.commit_transaction()
        say("committed", count=count)
    producer.close()
    consumer.close()
    say("closed")


async def aiokafka(options: Options) -> None:
    consumer = AIOKafkaConsumer(
        options.source,
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        session_timeout_ms=3000,
        heartbeat_interval_ms=300,
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=options.bootstrap,
        transactional_id=options.id,
        transaction_timeout_ms=5000,
    )
    await producer.start()
    say("ready")
    await consumer.start()
    while not options.closing.is_set():
        polled = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=options.most)
        if not polled:
            continue
        count = 0
        async with producer.transaction():
            positions: dict[AioTopicPartition, int] = {}
            for place, messages in polled.items():
                for each in messages:
                    await producer.send(options.target, each.value, each.key)
                    count += 1
                positions[place] = messages[-1].offset + 1
            await producer.send_offsets_to_transaction(positions, options.group)
        say("committed", count=count)
    await producer.stop()
    await consumer.stop()
    say("closed")


def main() -> None:
    name, text = sys.argv[1:]
    options = Options(text)
    if name == "librdkafka":
        librdkafka(options)
    elif name == "kafka-python":
        kafka_python(options)
    else:
        asyncio.run(aiokafka(options))


if __name__ == "__main__":
    main()
