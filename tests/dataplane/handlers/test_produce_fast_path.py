"""Produce has two implementations: a hand-written one for common requests, and the tables.

Both must have the same outcome. Each example is a series of requests, played on two nodes in equal
simulated worlds: one unchanged, one where the hand-written decoder accepts no request. The test
compares the responses byte by byte, the logs, the counted quota use and the metrics.
"""

import errno
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from metaquorum.dataplane.instruments.error_counts import ErrorCounts
from metaquorum.simulations.harness.node import LOG_DIRS
from metaquorum.wire.messages.api_versions import ApiVersionsRequest
from metaquorum.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from metaquorum.wire.messages.describe_quota_use import AskedClient, DescribeQuotaUseRequest
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol import request_form
from metaquorum.wire.protocol.apis import APIS, ApiKey
from metaquorum.wire.protocol.headers import decode_response, encode_request
from metaquorum.wire.protocol.request_header import decode_request_header
from metaquorum.wire.records.batches import TRANSACTIONAL
from metaquorum.wire.records.records import Codec, Record, encode_batch
from tests.dataplane.quotas.test_quota_enforcement import set_quota
from tests.dataplane.serving import (
    WORLD_BEGAN_MS,
    RawClient,
    Simulated,
    batch_of,
    fetch_message,
    request,
    run_simulated,
)
from tests.examples import examples
from tests.wire.records.sample_batches import damaged, legacy, rewritten

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
    "copied": {"min_insync_replicas": 2},  # there is only one replica
    "zipped": {"compression_type": "gzip"},
    "timely": {"message_timestamp_after_max_ms": 1000},
}
API: Final = APIS[ApiKey.PRODUCE]
NOT_SERVED: Final = (0, API.min_version - 1, API.max_version + 1)


class Data(NamedTuple):
    index: int
    batch: bytes | None


class Asked(NamedTuple):
    """One request; `topics` by their names, ABSENT for one that does not exist."""

    version: int
    acks: int
    topics: tuple[tuple[str, tuple[Data, ...]], ...]
    timeout_ms: int = 1000
    transactional_id: str | None = None
    client_id: str | None = CLIENT_ID
    named_version: int | None = None  # version in the header, if it differs
    behind: bytes = b""  # bytes after the message in its frame
    damage: tuple[int, int] | None = None  # changed byte of the body, and its XOR mask


def _sequenced(producer_id: int, epoch: int, sequence: int, size: int, **options: int) -> bytes:
    ids = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return bytes(batch_of(*(b"%d" % sequence for _ in range(size)), **ids, **options))


def _of_times(*timestamps: int) -> bytes:
    return bytes(encode_batch([Record(i, at, b"k", b"v") for i, at in enumerate(timestamps)]))


ABSENT: Final = "absent"
DAMAGED_BYTES: Final = 50  # first bytes of the body, before the batch's checksum
DAY_MS: Final = 86_400_000
SOUND: Final = bytes(batch_of(b"value"))
KINDS: Final = {
    "sound": SOUND,
    "none": None,
    "empty": b"",
    "two batches": SOUND + SOUND,
    "cut": SOUND[:-1],
    "long": SOUND + b"\0",
    "damaged": bytes(damaged(batch_of(b"value"), 40)),
    "legacy": legacy(1),
    "behind offset 0": bytes(batch_of(b"value", base_offset=1)),
    "other records than its header says": bytes(rewritten(batch_of(b"value"), record_count=2)),
    "of a broker": bytes(rewritten(batch_of(b"value"), attributes=0x20)),
    "large for some": bytes(batch_of(b"x" * 200)),
    "splittable": bytes(batch_of(b"x" * 100, b"y" * 100)),
    "splittable, of a producer": bytes(
        batch_of(b"x" * 100, b"y" * 100, producer_id=3, producer_epoch=0, base_sequence=0)
    ),
    "gzip": bytes(batch_of(b"x" * 100, codec=Codec.GZIP)),
    "zstd": bytes(batch_of(b"x" * 100, codec=Codec.ZSTD)),
    "of a transaction": bytes(
        rewritten(bytearray(_sequenced(5, 0, 0, 1)), attributes=TRANSACTIONAL)
    ),
    "of a transaction without a producer": bytes(
        rewritten(batch_of(b"value"), attributes=TRANSACTIONAL)
    ),
    "of tomorrow": _of_times(WORLD_BEGAN_MS + 3 * DAY_MS),
    "partly of tomorrow": _of_times(WORLD_BEGAN_MS, WORLD_BEGAN_MS + 3 * DAY_MS),
    "of another largest time": bytes(
        rewritten(bytearray(_of_times(WORLD_BEGAN_MS)), max_timestamp=WORLD_BEGAN_MS + 5)
    ),
    "with a key": _of_times(WORLD_BEGAN_MS),
    "more than in place": bytes(batch_of(b"x" * 300_000)),
}


def _batch(rng: random.Random) -> bytes | None:
    if rng.random() < 0.5:
        return _sequenced(
            rng.randrange(2), rng.choice((0, 0, 0, 1)), rng.randrange(4), rng.randrange(1, 3)
        )
    return rng.choice((SOUND, KINDS[rng.choice(sorted(KINDS))]))


def _rows(rng: random.Random) -> tuple[Data, ...]:
    if rng.random() < 0.03:  # more than one byte counts
        return tuple(Data(n % PARTITIONS, SOUND) for n in range(rng.randrange(125, 130)))
    indexes = range(PARTITIONS) if rng.random() < 0.9 else range(-1, PARTITIONS + 1)
    return tuple(Data(rng.choice(indexes), _batch(rng)) for _ in range(rng.randrange(1, 4)))


def _asked(names: list[str], seed: int) -> Asked:
    """Draw a request, usually one that the hand-written decoder accepts, except its batches."""
    rng = random.Random(seed)
    topic_count = rng.choice((0, 2)) if rng.random() < 0.05 else 1
    asked = Asked(
        rng.randint(API.min_version, API.max_version),
        rng.choices((-1, 1, 0, 2, -2), (45, 45, 4, 3, 3))[0],
        tuple((rng.choice(names), _rows(rng)) for _ in range(topic_count)),
        rng.choice((1000, 0, -1)),
        client_id=rng.choice((CLIENT_ID, CLIENT_ID, "another", None)),
    )
    match rng.randrange(40):
        case 0:
            return asked._replace(transactional_id="tx")
        case 1:
            return asked._replace(named_version=rng.choice(NOT_SERVED))
        case 2:
            return asked._replace(behind=b"\0")
        case 3 | 4:
            return asked._replace(damage=(rng.randrange(1 << 16), rng.randrange(1, 256)))
    return asked


@st.composite
def series(draw: st.DrawFn) -> list[Asked]:
    """Draw requests about few topics, so that they append to the same logs.

    Each is made from a number, not drawn part by part: Hypothesis would mostly repeat a few.
    """
    names = draw(st.lists(st.sampled_from([*TOPICS, ABSENT]), min_size=1, max_size=3, unique=True))
    seeds = st.integers(0, (1 << 64) - 1)
    return [_asked(names, seed) for seed in draw(st.lists(seeds, min_size=1, max_size=20))]


def frame_of(asked: Asked, ids: dict[str, bytes], number: int) -> bytes:
    message = ProduceRequest(
        acks=asked.acks,
        timeout_ms=asked.timeout_ms,
        transactional_id=asked.transactional_id,
        topic_data=[
            TopicProduceData(
                name=name,
                topic_id=ids.get(name, b"\7" * 16),
                partition_data=[PartitionProduceData(index=i, records=batch) for i, batch in rows],
            )
            for name, rows in asked.topics
        ],
    )
    whole = encode_request(ApiKey.PRODUCE, asked.version, number, asked.client_id, message)
    frame = bytearray(whole[4:] + asked.behind)
    if asked.named_version is not None:
        frame[2:4] = asked.named_version.to_bytes(2, "big")
    if asked.damage is not None:
        _, body = decode_request_header(memoryview(bytes(frame)))
        at, change = asked.damage
        # The fields before the batches decide how the rest is decoded.
        frame[body + at % min(len(frame) - body, DAMAGED_BYTES)] ^= change
    return len(frame).to_bytes(4, "big") + frame


async def answers_to(served: Simulated, client: RawClient, frame: bytes) -> list[bytes]:
    """Return all frames before the response to a later request, or until the connection ends."""
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
    taken: dict[tuple[str, int], tuple[int, int]]  # records and bytes in the metrics


class Fault(NamedTuple):
    """A disk error on writes to the first log of a topic, during these requests."""

    topic: str
    error: int
    since: int = 0
    until: int = 1000


def play(
    requests: Iterable[Asked], quota: int | None, fault: Fault | None, by_hand: bool
) -> Outcome:
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
        answers = []
        for number, asked in enumerate(requests):
            if fault is not None:
                refuses = fault.since <= number < fault.until
                disk.refusing = _refusing(fault) if refuses else None
            answers.append(await answers_to(served, client, frame_of(asked, ids, number)))
            if answers[-1] and answers[-1][-1] == b"closed":
                client = await served.connect()
        disk.refusing = None
        found.append(await outcome_of(served, client, answers))

    with pytest.MonkeyPatch.context() as patch:
        if not by_hand:
            patch.setattr(request_form, "decode_one", lambda *_: None)
        run_simulated(scenario, log_dirs=LOG_DIRS[:2])
    return found[0]


def _refusing(fault: Fault) -> Callable[[str], int]:
    return lambda path: fault.error if f"/{fault.topic}-0/" in path else 0


async def trim(client: RawClient) -> None:
    """Advance the log start offset of one log above 0."""
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
@examples(80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    series(),
    st.sampled_from([None, 10_000]),
    st.none()
    | st.builds(
        Fault,
        st.sampled_from(sorted(TOPICS)),
        st.sampled_from([errno.ENOSPC, errno.EIO]),
        st.integers(0, 3),
        st.sampled_from([4, 1000]),
    ),
)
def test_both_ways_have_one_outcome(
    requests: list[Asked], quota: int | None, fault: Fault | None
) -> None:
    both_ways(requests, quota, fault)


def both_ways(
    requests: list[Asked], quota: int | None = None, fault: Fault | None = None
) -> Outcome:
    ours, tables = play(requests, quota, fault, True), play(requests, quota, fault, False)
    for number, asked in enumerate(requests):
        assert ours.answers[number] == tables.answers[number], (
            asked,
            decoded(asked, ours.answers[number]),
            decoded(asked, tables.answers[number]),
        )
    assert ours == tables
    return ours


@pytest.mark.slow
@pytest.mark.parametrize("acks", [-1, 1])
def test_each_kind_of_batch_has_one_outcome_in_each_topic_by_each_version(acks: int) -> None:
    requests = [
        Asked(version, acks, ((topic, (Data(number % PARTITIONS, batch),)),))
        for version in range(API.min_version, API.max_version + 1)
        for topic in [*TOPICS, ABSENT]
        for number, batch in enumerate(KINDS.values())
        if len(batch or b"") < 1000 or version == API.max_version
    ]
    both_ways(requests)


def _other_forms(version: int) -> Iterator[Asked]:
    plain = (("plain", (Data(0, SOUND),)),)
    asked = Asked(version, 1, plain)
    for acks in (-2, -1, 0, 1, 2):
        yield asked._replace(acks=acks)
    for timeout_ms in (-1, 0, 1000):
        yield asked._replace(acks=-1, timeout_ms=timeout_ms)
    for named_version in NOT_SERVED:
        yield asked._replace(named_version=named_version)
    yield asked._replace(transactional_id="tx")
    yield asked._replace(behind=b"\0")
    yield asked._replace(topics=())
    yield asked._replace(topics=plain * 2)
    yield asked._replace(topics=(("plain", ()),))
    yield asked._replace(topics=(("", (Data(0, SOUND),)),))
    for count in range(125, 130):  # from 127 on, the count takes two bytes
        rows = tuple(Data(number % PARTITIONS, SOUND) for number in range(count))
        yield asked._replace(topics=(("plain", rows),))
    for position in range(DAMAGED_BYTES):
        for change in (1, 0x80, 0xFF):
            yield asked._replace(damage=(position, change))


@pytest.mark.slow
@pytest.mark.parametrize("version", range(API.min_version, API.max_version + 1))
def test_each_other_form_of_a_request_has_one_outcome(version: int) -> None:
    both_ways(list(_other_forms(version)))


@pytest.mark.parametrize("version", [9, API.max_version])
def test_what_follows_a_batch_that_was_refused_is_refused_for_the_next_four_requests(
    version: int,
) -> None:
    first, second = (
        Asked(version, 1, (("plain", (Data(0, _sequenced(7, 0, sequence, 1)),)),))
        for sequence in range(2)
    )
    other = Asked(version, 1, (("trimmed", (Data(0, SOUND),)),))
    full = Fault("plain", errno.ENOSPC, until=1)
    for between, code in ((3, ErrorCode.KAFKA_STORAGE_ERROR), (4, ErrorCode.NONE)):
        requests = [first, *[other] * between, second]
        codes = _codes(requests, both_ways(requests, fault=full))
        assert codes == [[ErrorCode.KAFKA_STORAGE_ERROR], *[[0]] * between, [code]]


def test_nothing_is_taken_in_a_directory_that_has_failed_within_the_same_request() -> None:
    rows = tuple(Data(index, SOUND) for index in range(PARTITIONS))
    requests = [Asked(9, 1, (("plain", rows),))]
    (codes,) = _codes(requests, both_ways(requests, fault=Fault("plain", errno.EIO)))
    assert sorted(codes) == [0, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR]


def _codes(requests: list[Asked], outcome: Outcome) -> list[list[int]]:
    """Return the error codes of each request's only topic."""
    answers = [decoded(*pair) for pair in zip(requests, outcome.answers, strict=True)]
    return [
        [row.error_code for row in answer.responses[0].partition_responses] for (answer,) in answers
    ]


def decoded(asked: Asked, frames: list[bytes]) -> list[Any]:
    return [
        frame
        if frame == b"closed"
        else decode_response(ApiKey.PRODUCE, asked.version, memoryview(frame))[1]
        for frame in frames
    ]
