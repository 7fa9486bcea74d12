"""Produce has two implementations: by hand for what nearly every request is, and by the tables.

Both are held to one outcome here. Each example is a series of requests, played on two nodes in
equal simulated worlds: one as it is, one where no request has the form that is read by hand. The
answers are compared byte by byte, then the logs, what quotas have counted, and what metrics count.
"""

import errno
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataplane.handlers import produce
from dataplane.instruments.error_counts import ErrorCounts
from simulations.harness.node import LOG_DIRS
from tests.dataplane.quotas.test_quota_enforcement import set_quota
from tests.dataplane.serving import (
    WORLD_BEGAN_MS,
    RawClient,
    Simulated,
    batch_of,
    fetch_message,
    request,
    simulated,
)
from tests.wire.records.sample_batches import damaged, legacy, rewritten
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from wire.messages.describe_quota_use import AskedClient, DescribeQuotaUseRequest
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.primitives.errors import ErrorCode
from wire.protocol.apis import APIS, ApiKey
from wire.protocol.headers import decode_response
from wire.records.batches import TRANSACTIONAL
from wire.records.records import Codec

CLIENT_ID: Final = "test"
PARTITIONS: Final = 3
TOPICS: Final = {
    "plain": {},
    "trimmed": {},
    "small": {"max_message_bytes": 150},
    "synced": {"flush_messages": 1},
    "sometimes": {"flush_messages": 3},
    "stamped": {"message_timestamp_type": "LogAppendTime"},
    "keyed": {"cleanup_policy": "compact"},
    "copied": {"min_insync_replicas": 2},  # of which there is one: acks=all is refused
    "zipped": {"compression_type": "gzip"},
    "timely": {"message_timestamp_after_max_ms": 1000},
}
API: Final = APIS[ApiKey.PRODUCE]


class Data(NamedTuple):
    index: int
    batch: bytes | None


class Asked(NamedTuple):
    """One request; `topics` by their names, "" for one that is not there."""

    version: int
    acks: int
    timeout_ms: int
    transactional_id: str | None
    topics: tuple[tuple[str, tuple[Data, ...]], ...]
    behind: bytes  # the message, in its frame


def _sequenced(producer_id: int, epoch: int, sequence: int, size: int) -> bytes:
    ids = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return bytes(batch_of(*(b"%d" % sequence for _ in range(size)), **ids))


SOUND: Final = bytes(batch_of(b"value"))
OTHERS: Final = {
    "none": None,
    "empty": b"",
    "two batches": SOUND + SOUND,
    "cut": SOUND[:-1],
    "long": SOUND + b"\0",
    "damaged": bytes(damaged(batch_of(b"value"), 40)),
    "legacy": legacy(1),
    "large for some": bytes(batch_of(b"x" * 200)),
    "splittable": bytes(batch_of(b"x" * 100, b"y" * 100)),
    "gzip": bytes(batch_of(b"x" * 100, codec=Codec.GZIP)),
    "of a transaction": bytes(rewritten(batch_of(b"value"), attributes=TRANSACTIONAL)),
    "of tomorrow": bytes(batch_of(b"value", timestamp=WORLD_BEGAN_MS + 3 * 86_400_000)),
    "more than in place": bytes(batch_of(b"x" * 300_000)),
}
BATCHES: Final = st.one_of(
    st.just(SOUND),
    st.builds(
        _sequenced, st.integers(0, 1), st.integers(0, 1), st.integers(0, 3), st.integers(1, 2)
    ),
    st.sampled_from(sorted(OTHERS)).map(OTHERS.__getitem__),
)
DATA: Final = st.builds(Data, st.integers(-1, PARTITIONS), BATCHES)
LIKELY_DATA: Final = st.builds(Data, st.integers(0, PARTITIONS - 1), BATCHES)
ROWS: Final = st.lists(st.one_of(LIKELY_DATA, DATA), min_size=1, max_size=3).map(tuple)


@st.composite
def series(draw: st.DrawFn) -> list[Asked]:
    """Requests about few topics, so that they meet in their logs."""
    names = st.sampled_from(
        draw(st.lists(st.sampled_from([*TOPICS, ""]), min_size=1, max_size=2, unique=True))
    )
    one_topic = st.tuples(names, ROWS).map(lambda topic: (topic,))
    several = st.lists(st.tuples(names, ROWS), max_size=2).map(tuple)
    usually = st.integers(0, 9)
    request = st.builds(
        Asked,
        st.integers(API.min_version, API.max_version),
        usually.map(lambda dice: {0: 0, 1: 2}.get(dice, -1 if dice % 2 else 1)),
        st.sampled_from([1000, 0, -1]),
        usually.map(lambda dice: "tx" if dice == 0 else None),
        usually.flatmap(lambda dice: several if dice == 0 else one_topic),
        usually.map(lambda dice: b"" if dice else b"\0"),
    )
    return draw(st.lists(request, min_size=1, max_size=6))


def frame_of(asked: Asked, ids: dict[str, bytes], number: int) -> bytes:
    message = ProduceRequest(
        acks=asked.acks,
        timeout_ms=asked.timeout_ms,
        transactional_id=asked.transactional_id,
        topic_data=[
            TopicProduceData(
                name=name or "absent",
                topic_id=ids.get(name, b"\7" * 16),
                partition_data=[PartitionProduceData(index=i, records=batch) for i, batch in rows],
            )
            for name, rows in asked.topics
        ],
    )
    whole = request(ApiKey.PRODUCE, message, asked.version, number) + asked.behind
    return (len(whole) - 4).to_bytes(4, "big") + whole[4:]


async def answers_to(served: Simulated, client: RawClient, frame: bytes) -> list[bytes]:
    """All frames that come back before the answer to a later question; or until the end."""
    await client.send(frame)
    marker = request(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0, 10_000)
    found: list[bytes] = []
    try:
        await client.send(marker)
        while int.from_bytes((answer := await client.frame())[:4], "big") != 10_000:
            found.append(answer)
    except (EOFError, OSError):
        found.append(b"closed")
    return found


class Outcome(NamedTuple):
    answers: list[list[bytes]]
    logs: dict[tuple[str, int], tuple[Any, ...]]
    quotas: list[tuple[Any, ...]]
    errors: dict[tuple[int, int], int]
    taken: dict[tuple[str, int], tuple[int, int]]  # records and bytes, as metrics count them


def play(requests: Iterable[Asked], quota: int | None, fault: int, by_hand: bool) -> Outcome:
    """`fault`: with which error the disk refuses to write to one of the logs; 0: with none."""
    found: list[Outcome] = []

    async def scenario(served: Simulated) -> None:
        client = await served.connect()
        ids = {}
        for name, configs in TOPICS.items():
            row = await client.create(name, PARTITIONS, **configs)
            assert row.error_code == 0, row
            ids[name] = row.topic_id
        await trim(client)
        if quota is not None:
            await set_quota(served, "producer_byte_rate", quota, name=CLIENT_ID)
        served.worker.errors = ErrorCounts()
        disk = served.on_machine.machine.faults
        disk.refusing = lambda path: fault if "/plain-0/" in path else 0
        answers = []
        for number, asked in enumerate(requests):
            answers.append(await answers_to(served, client, frame_of(asked, ids, number)))
            if answers[-1] and answers[-1][-1] == b"closed":
                client = await served.connect()
        disk.refusing = None
        found.append(await outcome_of(served, client, answers))

    with pytest.MonkeyPatch.context() as patch:
        if not by_hand:
            patch.setattr(produce, "decode_one", lambda *_: None)
        simulated(scenario, log_dirs=LOG_DIRS[:2])
    return found[0]


async def trim(client: RawClient) -> None:
    """One of the logs does not begin at 0."""
    for _ in range(3):
        await client.produce("trimmed", batch_of(b"gone"))
    rows = [DeleteRecordsPartition(partition_index=0, offset=2)]
    asked = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="trimmed", partitions=rows)], timeout_ms=1000
    )
    answer = await client.call(ApiKey.DELETE_RECORDS, asked)
    assert answer.topics[0].partitions[0].low_watermark == 2


async def outcome_of(served: Simulated, client: RawClient, answers: list[list[bytes]]) -> Outcome:
    errors = dict(served.worker.errors.by_code)
    use = await client.call(
        ApiKey.DESCRIBE_QUOTA_USE,
        DescribeQuotaUseRequest(clients=[AskedClient(client_id=CLIENT_ID)], most_used=10),
    )
    quotas = [
        (row.quota_key, row.user, row.client_id, row.used_total, row.throttle_count)
        for row in use.uses
        if row.quota_key == "producer_byte_rate"
    ]
    logs, taken = {}, {}
    for name in TOPICS:
        for index in range(PARTITIONS):
            partition = served.worker.replica_manager.by_name(name, index)
            traffic = partition.traffic
            taken[name, index] = traffic.records_in, traffic.bytes_in
            asked = fetch_message({name: [(index, 0)]})
            row = (await client.call(ApiKey.FETCH, asked, 12)).responses[0].partitions[0]
            found = bytes(row.records or b"")
            unflushed = partition.log.unflushed_records
            logs[name, index] = row.high_watermark, row.log_start_offset, unflushed, found
    return Outcome(answers, logs, quotas, errors, taken)


@pytest.mark.slow
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    series(),
    st.sampled_from([None, 10_000]),
    st.sampled_from([0, 0, 0, errno.ENOSPC, errno.EIO]),
)
def test_both_ways_have_one_outcome(requests: list[Asked], quota: int | None, fault: int) -> None:
    ours, tables = play(requests, quota, fault, True), play(requests, quota, fault, False)
    for number, asked in enumerate(requests):
        assert ours.answers[number] == tables.answers[number], (
            asked,
            decoded(asked, ours.answers[number]),
            decoded(asked, tables.answers[number]),
        )
    assert ours == tables


def test_nothing_is_taken_in_a_directory_that_has_failed_within_the_same_request() -> None:
    rows = tuple(Data(index, SOUND) for index in range(PARTITIONS))
    requests = [Asked(9, 1, 1000, None, (("plain", rows),), b"")]
    ours, tables = (play(requests, None, errno.EIO, by_hand) for by_hand in (True, False))
    assert ours == tables
    ((answer,),) = (decoded(*pair) for pair in zip(requests, ours.answers, strict=True))
    codes = [row.error_code for row in answer.responses[0].partition_responses]
    assert sorted(codes) == [0, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR]


def decoded(asked: Asked, frames: list[bytes]) -> list[Any]:
    return [
        frame
        if frame == b"closed"
        else decode_response(ApiKey.PRODUCE, asked.version, memoryview(frame))[1]
        for frame in frames
    ]
