"""Batches after a refused one: from real producers with requests in flight, and built by the test.

A disk that accepts only small writes refuses the first batch of a new producer, and could accept
all later ones, every time.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import trio

from metaquorum.dataplane.partition.rejected_batches import (
    MAX_REFUSED,
    REQUESTS_BEHIND,
    Place,
    RejectedBatches,
    TooManyRejectedError,
)
from metaquorum.runtime import Buffer, File, StorageError
from metaquorum.wire.messages.produce import PartitionProduceData
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.batches import batches, parse_header
from tests.dataplane.serving import (
    PRODUCE_VERSION,
    FaultyDisk,
    FaultyFile,
    RawClient,
    batch_of,
    in_trio,
    produce_message,
    serving,
)
from tests.nodes import KAFKA

LARGE_BYTES = 150_000
ROOM_BYTES = 100_000
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
PLACE: Place = "t", 0
FULL = StorageError("full")


def produced(
    sequence: int, epoch: int = 0, producer_id: int = 7, *, large: bool = False, count: int = 1
) -> Any:
    return batch_of(
        b"%d" % sequence + bytes(LARGE_BYTES * large),
        *[b""] * (count - 1),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


# Remembered batches, and for how many requests


def may_come(
    refused: RejectedBatches | None, sequence: int, epoch: int = 0, producer_id: int = 7
) -> bool:
    if refused is None:
        return True
    header = parse_header(produced(sequence, epoch, producer_id))
    try:
        refused.check(PLACE, header)
    except KafkaError as error:
        return error.code is not OUT_OF_ORDER
    return True


def after_refusing(sequence: int, epoch: int = 0) -> RejectedBatches:
    refused = RejectedBatches()
    refused.reject(PLACE, produced(sequence, epoch), FULL)
    return refused


def test_what_follows_waits_for_the_first_that_was_refused() -> None:
    refused = after_refusing(10)
    refused.reject(PLACE, produced(20), FULL)
    assert not may_come(refused, 20)
    assert may_come(refused, 20, producer_id=8)
    assert may_come(refused, 10)
    assert may_come(refused, 20)


@pytest.mark.parametrize("sequence", [9, 0, (1 << 31) - 5])
def test_what_comes_before_it_does_not_wait(sequence: int) -> None:
    assert may_come(after_refusing(10), sequence)


def test_sequences_begin_anew_behind_the_last() -> None:
    last = (1 << 31) - 1
    assert not may_come(after_refusing(last), 0)
    assert may_come(after_refusing(0), last)


def test_an_earlier_one_that_is_refused_later_is_the_first() -> None:
    refused = after_refusing(20)
    refused.reject(PLACE, produced(10), FULL)
    assert not may_come(refused, 20)
    assert may_come(refused, 10)


def test_another_epoch_has_given_it_up() -> None:
    assert may_come(after_refusing(10, epoch=3), 0, epoch=4)
    refused = after_refusing(10, epoch=3)
    refused.reject(PLACE, produced(0, 4), FULL)
    assert not may_come(refused, 5, epoch=4)


def test_one_that_is_refused_again_is_remembered_anew() -> None:
    refused = after_refusing(10)
    for _ in range(2 * REQUESTS_BEHIND):
        assert refused.next_request() is refused
        refused.reject(PLACE, produced(10), FULL)
    assert not may_come(refused, 20)


def test_what_follows_is_told_what_the_first_was_if_that_is_tried_again() -> None:
    out_of_order = KafkaError(OUT_OF_ORDER)
    refused = after_refusing(10)
    for sequence, code in ((9, OUT_OF_ORDER), (20, OUT_OF_ORDER), (10, OUT_OF_ORDER)):
        told = after_refusing(10).reject(PLACE, produced(sequence), out_of_order)
        expected = ErrorCode.KAFKA_STORAGE_ERROR if sequence == 20 else code
        assert isinstance(told, KafkaError)
        assert told.code is expected
    too_large = KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
    assert refused.reject(PLACE, produced(20), too_large) is too_large
    refused = RejectedBatches()
    refused.reject(PLACE, produced(10, count=2), too_large)
    assert not may_come(refused, 20)
    assert refused.reject(PLACE, produced(20), out_of_order) is out_of_order


@pytest.mark.parametrize(
    "code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD, OUT_OF_ORDER]
)
def test_what_cannot_come_again_is_not_waited_for(code: ErrorCode) -> None:
    refused = RejectedBatches()
    refused.reject(PLACE, produced(10), KafkaError(code))
    assert may_come(refused, 20)
    assert refused.next_request() is None


def test_what_was_sent_after_its_answer_does_not_wait() -> None:
    refused: RejectedBatches | None = after_refusing(0)
    for _ in range(REQUESTS_BEHIND):
        assert refused is not None
        refused = refused.next_request()
        assert not may_come(refused, 10)
    assert refused is not None
    assert refused.next_request() is None


def test_topics_that_cannot_be_are_not_waited_for() -> None:
    refused = RejectedBatches()
    refused.reject(("x" * 250, 0), produced(0), KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert refused.next_request() is None


def test_each_is_remembered_for_its_own_time() -> None:
    refused = after_refusing(0)
    for number in range(REQUESTS_BEHIND):
        assert refused.next_request() is refused
        refused.reject(("other", number), produced(0), FULL)
    assert refused.next_request() is refused
    assert may_come(refused, 10)


def test_of_no_producer_nothing_is_remembered() -> None:
    refused = RejectedBatches()
    for records in (None, b"", b"x" * 100, batch_of(b"x")):
        refused.reject(PLACE, records, FULL)
    assert refused.next_request() is None


def test_who_cannot_be_remembered_has_to_connect_again() -> None:
    refused = RejectedBatches()
    for number in range(MAX_REFUSED):
        refused.reject(("full", number), produced(0), FULL)
    assert may_come(refused, 10)
    refused.reject(("full", MAX_REFUSED), produced(0), FULL)
    with pytest.raises(TooManyRejectedError):
        may_come(refused, 10)
    for _ in range(REQUESTS_BEHIND):
        assert refused.next_request() is refused
    assert refused.next_request() is None


# Over the wire


async def pipelined(client: RawClient, *batches: bytes) -> list[int]:
    """Send the requests without waiting between them; return their error codes."""
    for batch in batches:
        await client.ask(ApiKey.PRODUCE, produce_message("t", batch), PRODUCE_VERSION)
    rows = [
        (await client.answer(ApiKey.PRODUCE, PRODUCE_VERSION)).responses[0].partition_responses[0]
        for _ in batches
    ]
    return [row.error_code for row in rows]


class TightDisk(FaultyDisk):
    """Disk that refuses writes to partition logs larger than `room_bytes`."""

    room_bytes = 1 << 40
    refusals = 0

    def open(self, path: str, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        return TightFile(path, file.fileno(), self) if path.endswith(".log") else file


class TightFile(FaultyFile):
    _disk: TightDisk

    def write(self, data: Buffer, position: int) -> None:
        if len(data) > self._disk.room_bytes:
            self._disk.refusals += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        super().write(data, position)


@pytest.mark.parametrize("flush_messages", [1 << 60, 1])
def test_what_is_behind_a_batch_that_did_not_fit_waits_for_it(
    tmp_path: Path, flush_messages: int
) -> None:
    @in_trio
    async def test() -> None:
        disk = TightDisk()
        async with serving(tmp_path, disk=disk) as served:
            client, other = await served.connect(), await served.connect()
            await client.create("t", flush_messages=flush_messages)
            disk.room_bytes = ROOM_BYTES
            full = ErrorCode.KAFKA_STORAGE_ERROR
            first = produced(0, large=True)
            assert await pipelined(client, first, produced(1), produced(2)) == [full] * 3
            # A producer known to the log, and one without sequences, is not affected.
            assert await pipelined(client, produced(4, producer_id=8), batch_of(b"x")) == [0, 0]
            assert await pipelined(client, first, produced(1)) == [full] * 2
            assert (
                await pipelined(
                    client, produced(5, producer_id=8, large=True), produced(6, producer_id=8)
                )
                == [full] * 2
            )
            disk.room_bytes = 1 << 40
            assert await pipelined(client, first, produced(1), produced(2)) == [0, 0, 0]
            # Another connection is not affected either: a client resends all batches there.
            assert await pipelined(other, produced(1, producer_id=9)) == [0]

    test()


@in_trio
async def test_a_topic_that_comes_meanwhile_does_not_begin_in_the_middle(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client, admin = await served.connect(), await served.connect()
        absent = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await pipelined(client, produced(0)) == [absent]
        await admin.create("t")
        assert await pipelined(client, produced(1), produced(0), produced(1)) == [absent, 0, 0]


@in_trio
async def test_a_producer_that_skips_what_was_refused_is_not_stuck(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t", max_message_bytes=1000)
        refused = ErrorCode.MESSAGE_TOO_LARGE
        first = produced(0, large=True, count=2)  # a client may split it and retry
        assert await pipelined(client, first, *[produced(2)] * (REQUESTS_BEHIND + 1)) == [
            refused,
            *[OUT_OF_ORDER] * REQUESTS_BEHIND,
            0,
        ]
        first = produced(0, 0, 8, large=True, count=2)
        assert await pipelined(client, first, produced(0, 1, 8), produced(1, 1, 8)) == [
            refused,
            0,
            0,
        ]
        first = produced(0, 0, 9, large=True)  # one record: cannot be split
        assert await pipelined(client, first, produced(1, 0, 9)) == [refused, 0]


@pytest.mark.parametrize("size_bytes", [0, 300_000])
def test_a_new_producer_connects_again_where_too_much_was_refused(
    tmp_path: Path, size_bytes: int
) -> None:
    @in_trio
    async def test() -> None:
        async with serving(tmp_path) as served:
            client, other = await served.connect(), await served.connect()
            await client.create("t")
            rows = [
                PartitionProduceData(index=index, records=produced(0))
                for index in range(1, MAX_REFUSED + 3)
            ]
            message = produce_message("t", None)
            message.topic_data[0].partition_data = rows
            await client.call(ApiKey.PRODUCE, message, PRODUCE_VERSION)
            batch = batch_of(bytes(size_bytes), producer_id=8, producer_epoch=0, base_sequence=5)
            await client.ask(ApiKey.PRODUCE, produce_message("t", batch), PRODUCE_VERSION)
            assert await client.is_closed()
            await other.produce("t", batch)

    test()


# Real clients


class Sending:
    """A librdkafka producer with one record per batch and five requests in flight."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.outcomes: dict[int, Any] = {}  # error or None, by record number
        self.fatal: list[str] = []
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": f"{address[0]}:{address[1]}",
                "enable.idempotence": True,
                "batch.num.messages": 1,
                "linger.ms": 0,
                "message.max.bytes": 10_000_000,
                "log_level": 0,
                "error_cb": self._note,
            }
        )

    def _note(self, error: Any) -> None:
        if error.fatal():
            self.fatal.append(str(error))

    def send(self, values: list[bytes], keys: list[bytes], first_timestamp: int) -> None:
        for number, (value, key) in enumerate(zip(values, keys, strict=True)):
            self._producer.produce(
                "t",
                value,
                key or None,
                partition=0,
                timestamp=0 if number else first_timestamp,
                on_delivery=lambda error, _, number=number: self.outcomes.update({number: error}),
            )

    async def until(self, condition: Callable[[], bool]) -> None:
        while len(self.outcomes) < 8 and not condition():
            self._producer.poll(0)
            await trio.sleep(0.01)


def large_first() -> list[bytes]:
    return [b"0" + bytes(LARGE_BYTES), *(b"%d" % number for number in range(1, 8))]


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [False, True])
def test_librdkafka_loses_nothing_when_the_second_would_have_fitted(
    tmp_path: Path, is_known: bool
) -> None:
    @in_trio
    async def test() -> None:
        disk = TightDisk()
        async with serving(tmp_path, disk=disk) as served:
            client = await served.connect()
            await client.create("t")
            sending = Sending(served.node.address)
            if is_known:
                sending.send([b"before"], [b""], 0)
                await sending.until(lambda: bool(sending.outcomes))
                sending.outcomes.clear()
            disk.room_bytes = ROOM_BYTES
            sending.send(large_first(), [b""] * 8, 0)
            await sending.until(lambda: disk.refusals > 1)
            disk.room_bytes = 1 << 40
            await sending.until(lambda: False)
            assert (set(sending.outcomes.values()), sending.fatal) == ({None}, [])
            assert await client.values("t") == [b"before"] * is_known + large_first()
            row = await client.fetch("t")
            assert {header.producer_epoch for _, header in batches(bytes(row.records))} == {0}

    test()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("configs", "without_key", "timestamp", "code"),
    [
        ({"max_message_bytes": 10_000}, False, 0, ErrorCode.MESSAGE_TOO_LARGE),
        ({"cleanup_policy": "compact"}, True, 0, ErrorCode.INVALID_RECORD),
        ({"message_timestamp_before_max_ms": 3_600_000}, False, 1000, ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_librdkafka_goes_on_behind_a_first_batch_that_can_never_be_taken(
    tmp_path: Path, configs: dict[str, object], without_key: bool, timestamp: int, code: ErrorCode
) -> None:
    @in_trio
    async def test() -> None:
        async with serving(tmp_path) as served:
            client = await served.connect()
            await client.create("t", **configs)
            sending = Sending(served.node.address)
            keys = [b"" if without_key else b"key", *[b"key"] * 7]
            sending.send(large_first(), keys, timestamp)
            await sending.until(lambda: False)
            assert sending.outcomes.pop(0).code() == code
            assert (set(sending.outcomes.values()), sending.fatal) == ({None}, [])
            assert await client.values("t") == large_first()[1:]

    test()


async def console_producer(address: tuple[str, int], lines: list[bytes], *config: str) -> None:
    """Send the lines with Java's console producer; return when it has ended."""
    tool = [str(KAFKA / "tool"), "console-producer", "--topic", "t"]
    tool += ["--bootstrap-server", f"{address[0]}:{address[1]}"]
    for each in config:
        tool += ["--producer-property", each]
    await trio.run_process(tool, stdin=b"\n".join(lines) + b"\n")


@pytest.mark.usefixtures("java")
@in_trio
async def test_javas_producer_keeps_its_order_when_the_second_would_have_fitted(
    tmp_path: Path,
) -> None:
    disk = TightDisk()
    async with serving(tmp_path, disk=disk) as served:
        client = await served.connect()
        await client.create("t")
        disk.room_bytes = ROOM_BYTES
        lines = [b"0" * LARGE_BYTES, *(b"%d" % number for number in range(1, 8))]
        async with trio.open_nursery() as nursery:

            async def make_room() -> None:
                while disk.refusals < 2:
                    await trio.sleep(0.01)
                disk.room_bytes = 1 << 40

            nursery.start_soon(make_room)
            await console_producer(served.node.address, lines, "batch.size=1", "linger.ms=0")
        assert await client.values("t") == lines


@pytest.mark.usefixtures("java")
@in_trio
async def test_javas_producer_splits_what_is_too_large_before_what_follows(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        await client.create("t", max_message_bytes=5000)
        lines = [b"%d" % number + b"." * 100 for number in range(170)]  # 150 lines fill a batch
        await console_producer(served.node.address, lines, "batch.size=16384", "linger.ms=100")
        assert await client.values("t") == lines
