"""Workloads of transactions for `bench`: librdkafka's producers, and a read_committed consumer."""

import itertools
import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, Producer, TopicPartition

clock = time.perf_counter
SERIAL = itertools.count()


def producer_of(peer, settings):
    name = f"bench-{os.getpid()}-{time.time_ns():x}-{next(SERIAL)}"
    producer = Producer(
        {
            "linger.ms": 5,
            "log_level": 3,
            **settings,
            "bootstrap.servers": peer.bootstrap,
            "transactional.id": name,
        }
    )
    producer.init_transactions(60)
    return producer


def reader_of(peer, topic, settings):
    consumer = Consumer(
        {
            **settings,
            "bootstrap.servers": peer.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
    return consumer


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


def produce(peer, topic, usage, settings, producers, seconds, records=100, size=100):
    """Commit transactions of `records` records as fast as possible; read them with read_committed.

    The latencies are from produce() until the record was read; the CPU time is that of the broker.
    """
    made = [producer_of(peer, settings) for _ in range(producers)]
    reader = reader_of(peer, topic, settings)
    pad = bytes(size - 16)
    warm = 1.0
    began = clock()
    ends = began + warm + seconds
    sent_count = [0] * producers
    pool = ThreadPoolExecutor(producers + 1)

    def send(number):
        producer, times = made[number], []
        while (first := clock()) < ends:
            producer.begin_transaction()
            for each in range(records):
                while True:
                    try:
                        value = struct.pack(">qd", number, clock()) + pad
                        producer.produce(topic, value, key=b"%d" % each)
                        break
                    except BufferError:
                        producer.poll(0.005)
            producer.commit_transaction(60)
            sent_count[number] += records
            if first - began > warm:
                times.append(clock() - first)
        return times

    def measure():
        time.sleep(max(0.0, began + warm - clock()))
        before = usage(peer.pids)[0]
        time.sleep(max(0.0, ends - clock()))
        return usage(peer.pids)[0] - before

    meter = pool.submit(measure)
    threads = [pool.submit(send, number) for number in range(producers)]
    taken, got = [], 0
    while not all(each.done() for each in threads) or got < sum(sent_count):
        messages = reader.consume(1000, 0.5)
        now = clock()
        if now > ends + 60:
            raise RuntimeError(f"{got} of {sum(sent_count)} records read")
        for message in messages:
            if message.error():
                raise RuntimeError(str(message.error()))
            sent = struct.unpack_from(">qd", message.value())[1]
            if began + warm < sent < ends:
                taken.append(now - sent)
        got += len(messages)
    times = [one for each in threads for one in each.result()]
    used = meter.result()
    pool.shutdown()
    reader.close()
    if got != sum(sent_count):
        raise RuntimeError(f"{got} records read of {sum(sent_count)}")
    return {
        "req_s": len(times) / seconds,
        "rec_s": len(times) * records / seconds,
        "p50_ms": quantile(taken, 0.5) * 1e3,
        "p99_ms": quantile(taken, 0.99) * 1e3,
        "txn_p50_ms": quantile(times, 0.5) * 1e3,
        "cpu_us_per_request": used / len(times) * 1e6,
    }


def commits(peer, topic, settings, partitions, times):
    """Commit transactions with one record in each partition; the latency is that of the commit."""
    producer = producer_of(peer, settings)
    commits, whole = [], []
    for number in range(times + 5):
        began = clock()
        producer.begin_transaction()
        for partition in range(partitions):
            producer.produce(topic, b"x" * 100, partition=partition)
        producer.flush(60)
        flushed = clock()
        producer.commit_transaction(60)
        ended = clock()
        if number >= 5:
            commits.append(ended - flushed)
            whole.append(ended - began)
    return {
        "p50_ms": quantile(commits, 0.5) * 1e3,
        "p99_ms": quantile(commits, 0.99) * 1e3,
        "txn_p50_ms": quantile(whole, 0.5) * 1e3,
    }
