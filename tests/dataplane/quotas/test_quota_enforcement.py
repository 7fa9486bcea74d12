"""Byte rate quotas enforced by a whole node, in virtual time."""

from itertools import pairwise

import pytest
import trio

from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.quotas.client_quota_manager import RateQuotas
from metaquorum.dataplane.quotas.muting import ClientName
from metaquorum.dataplane.quotas.quota_status import QuotaStatus
from metaquorum.metadata.quota_lookup import BY_CONFIG, CLIENT_ID, USER, EntityPart
from metaquorum.quorum.controller.quota_changes import QuotaChange, QuotaOp
from metaquorum.simulations.kernel.clock import PIECE_CPU_S
from metaquorum.simulations.single_node.snapback import per_second, producer
from metaquorum.wire.messages.delete_topics import DeleteTopicsRequest
from metaquorum.wire.protocol.apis import APIS, Api, ApiKey
from metaquorum.wire.schema.codec import decode, encode
from tests.dataplane.changes import change_quotas
from tests.dataplane.serving import (
    FETCH_VERSION,
    RawClient,
    Simulated,
    batch_of,
    fetch_message,
    produce_message,
    records_of,
    run_simulated,
    simulated,
)

WINDOW_S = 10.0  # the quota of this time may be used at once
RECORD = bytes(10_000)
STRANGER = Client(("192.0.2.1", 1), "PLAINTEXT")


async def set_quota(
    node: Simulated, key: str, value: float | None, *, name: str | None = None
) -> None:
    change = QuotaChange(
        (EntityPart(CLIENT_ID, name),), [QuotaOp(key, None if value is None else float(value))]
    )
    await change_quotas(node.worker.controller_client, change)


async def send(client: RawClient, batch: bytes | bytearray, version: int = 9) -> int:
    """Return the throttle time of the response."""
    answer = await client.call(ApiKey.PRODUCE, produce_message("t", batch), version)
    assert answer.responses[0].partition_responses[0].error_code == 0
    return int(answer.throttle_time_ms)


async def topic(node: Simulated) -> RawClient:
    client = await node.connect()
    await client.create("t")
    return client


def test_producers_of_one_client_id_share_its_rate_and_never_get_more() -> None:
    quota, batch = 20_000.0, batch_of(RECORD)
    sent: list[tuple[float, int]] = []

    async def produce(node: Simulated, until: float) -> None:
        client = await node.connect()
        while node.now < until:
            await send(client, batch)
            sent.append((node.now, len(batch)))

    async def scenario(node: Simulated) -> None:
        await topic(node)
        await set_quota(node, "producer_byte_rate", quota)
        began = node.now
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(produce, node, began + 60)
        total = sum(size for _, size in sent)
        spent_s = node.now - began
        # Q1: the elapsed time, the burst, and one request of each connection.
        assert total <= quota * (spent_s + WINDOW_S + 1) + 3 * (len(batch) + 200)
        assert total >= 0.95 * quota * spent_s

    run_simulated(scenario)


@simulated()
async def test_the_answer_comes_first_and_then_nothing_is_read_for_as_long_as_it_says(
    node: Simulated,
) -> None:
    client = await topic(node)
    await set_quota(node, "producer_byte_rate", 10_000)
    batch = batch_of(bytes(200_000))
    began = node.now
    throttle_ms = await send(client, batch)
    assert node.now - began < 0.1
    assert throttle_ms == pytest.approx((len(batch) - 100_000) / 10, rel=0.01)
    began = node.now
    await client.call(ApiKey.API_VERSIONS, APIS[ApiKey.API_VERSIONS].request(), 0)
    assert node.now - began == pytest.approx(throttle_ms / 1000, abs=0.05)


@pytest.mark.parametrize("version", [3, 5, 7, 8, 9, 12])
@pytest.mark.parametrize("partition_count", [1, 2])  # by hand, and by the tables
@simulated()
async def test_every_version_says_the_throttle_time(
    node: Simulated, version: int, partition_count: int
) -> None:
    client = await topic(node)
    await set_quota(node, "producer_byte_rate", 1_000)
    message = produce_message("t", batch_of(bytes(20_000)))
    message.topic_data *= partition_count
    answer = await client.call(ApiKey.PRODUCE, message, version)
    assert answer.throttle_time_ms > 9_000


@simulated()
async def test_a_quota_that_is_removed_or_raised_frees_who_is_muted(node: Simulated) -> None:
    client = await topic(node)
    for freed in (None, 1e9):
        await set_quota(node, "producer_byte_rate", 100)
        assert await send(client, batch_of(RECORD)) > 80_000
        await client.ask(ApiKey.PRODUCE, produce_message("t", batch_of(b"next")), 9)
        await trio.sleep(5)
        began = node.now
        await set_quota(node, "producer_byte_rate", freed)
        answer = await client.answer(ApiKey.PRODUCE, 9)
        assert answer.throttle_time_ms == 0
        assert node.now - began < 0.5
        assert not node.worker.quotas.mutes


@simulated()
async def test_a_lower_quota_counts_what_was_used_before_it(node: Simulated) -> None:
    client = await topic(node)
    await set_quota(node, "producer_byte_rate", 100_000)
    assert await send(client, batch_of(bytes(500_000))) == 0
    await set_quota(node, "producer_byte_rate", 10_000)
    assert await send(client, batch_of(b"x")) == pytest.approx(40_000, rel=0.02)


def test_a_consumer_reads_all_at_its_rate_and_meanwhile_gets_empty_answers() -> None:
    quota, count = 50_000.0, 200

    async def scenario(node: Simulated) -> None:
        client = await topic(node)
        for _ in range(count):
            await send(client, batch_of(RECORD))
        await set_quota(node, "consumer_byte_rate", quota)
        began, offset, throttled = node.now, 0, 0
        while offset < count:
            asked = fetch_message({"t": [(0, offset)]}, max_wait_ms=500)
            answer = await client.call(ApiKey.FETCH, asked, FETCH_VERSION)
            if answer.throttle_time_ms:
                assert not answer.responses
                throttled += 1
                continue
            records = records_of(answer.responses[0].partitions[0])
            offset = records[-1].offset + 1
        expected_s = count * len(RECORD) / quota - WINDOW_S
        assert throttled
        assert node.now - began == pytest.approx(expected_s, rel=0.4)

    run_simulated(scenario)


@simulated()
async def test_a_batch_larger_than_a_window_of_quota_is_delivered_and_paid_for(
    node: Simulated,
) -> None:
    client = await topic(node)
    for _ in range(3):
        await send(client, batch_of(bytes(100_000)))
    await set_quota(node, "consumer_byte_rate", 1_000)  # 10 kB in a window
    began, offset = node.now, 0
    while offset < 3:
        asked = fetch_message({"t": [(0, offset)]})
        answer = await client.call(ApiKey.FETCH, asked, FETCH_VERSION)
        if answer.throttle_time_ms == 0:
            offset += len(records_of(answer.responses[0].partitions[0]))
    # The first fetch is served, the next one after its throttle time: 90 kB above the window.
    assert 2 * 90 <= node.now - began <= 2 * 111


@simulated()
async def test_a_throttled_fetch_session_goes_on_where_it_was(node: Simulated) -> None:
    client = await topic(node)
    await send(client, batch_of(bytes(30_000)))
    await set_quota(node, "consumer_byte_rate", 1_000)
    asked = fetch_message({"t": [(0, 0)]})
    asked.session_epoch = 0
    first = await client.call(ApiKey.FETCH, asked, FETCH_VERSION)
    assert records_of(first.responses[0].partitions[0])
    for epoch in range(1, 4):
        following = fetch_message({})
        following.session_id, following.session_epoch = first.session_id, epoch
        answer = await client.call(ApiKey.FETCH, following, FETCH_VERSION)
        assert answer.error_code == 0
        assert answer.session_id == first.session_id
        if answer.throttle_time_ms == 0:
            return
    raise AssertionError("throttled forever")


async def muted(node: Simulated) -> RawClient:
    client = await topic(node)
    await set_quota(node, "producer_byte_rate", 10)
    assert await send(client, batch_of(RECORD)) > 900_000
    return client


async def gone(node: Simulated, within_s: float) -> None:
    with trio.fail_after(within_s):
        while node.worker.quotas.mutes:
            await trio.sleep(0.05)


@simulated()
async def test_the_end_of_a_muted_connection_is_noticed(node: Simulated) -> None:
    client = await muted(node)
    assert len(node.worker.quotas.mutes) == 1
    client.connection.close()
    await gone(node, 2)


@simulated()
async def test_what_was_sent_before_the_end_is_still_appended(node: Simulated) -> None:
    """A producer with acks=0 sends and disconnects."""
    client = await topic(node)
    await set_quota(node, "producer_byte_rate", 1_000)
    assert await send(client, batch_of(bytes(20_000))) > 9_000
    await client.ask(ApiKey.PRODUCE, produce_message("t", batch_of(b"last"), acks=0), 9)
    await trio.sleep(0.5)
    client.connection.close()
    await trio.sleep(15)
    assert (await (await node.connect()).values("t"))[-1] == b"last"


@simulated()
async def test_a_node_that_stops_does_not_wait_for_the_muted(node: Simulated) -> None:
    client = await muted(node)
    began = node.now
    await node.on_machine.stop()
    assert node.now - began < 5
    assert await client.is_closed()


@simulated(connections_max_idle_ms=2_000)
async def test_a_muted_connection_is_not_idle(node: Simulated) -> None:
    client = await topic(node)
    await set_quota(node, "producer_byte_rate", 1_000)
    throttle_ms = await send(client, batch_of(bytes(40_000)))
    assert throttle_ms > 20_000
    await trio.sleep(throttle_ms / 1000 - 0.5)
    await send(client, batch_of(b"x"))


@simulated()
async def test_what_a_muted_client_sends_waits_in_its_own_buffers(node: Simulated) -> None:
    client = await muted(node)
    sent = 0
    request = produce_message("t", batch_of(bytes(50_000)))
    with trio.move_on_after(30):
        while sent < 10_000:
            await client.ask(ApiKey.PRODUCE, request, 9)
            sent += 1
    assert 0 < sent < 200
    assert node.worker.replica_manager.by_name("t", 0).log.log_end_offset == 1


def test_snapback_is_what_the_picture_shows() -> None:
    """10 kB records at 100 kB/s: a burst, then small batches, and 100 kB/s on average."""
    drawn = per_second(list(producer(len(RECORD), 100_000, 44)), 44)
    assert drawn[0] == 110  # T grows to eleven seconds while the burst lasts
    assert set(drawn[1:11]) <= {0, 1}
    assert drawn[12] >= 95
    assert sum(drawn[11:44]) == pytest.approx(330, rel=0.03)
    times: list[float] = []

    async def scenario(node: Simulated) -> None:
        client = await topic(node)
        await set_quota(node, "producer_byte_rate", 100_000)
        await trio.sleep(12)
        began = node.now
        while node.now - began < 44:
            throttle_ms = await send(client, batch_of(RECORD))
            times.append(node.now - began)
            await trio.sleep(0.004 + throttle_ms / 1000)  # a client waits for the throttle time

    run_simulated(scenario)
    assert len(times) == pytest.approx(sum(drawn), rel=0.03)
    for second in range(0, 44, 11):
        seen = sum(1 for at in times if second <= at < second + 11)
        assert seen == pytest.approx(sum(drawn[second : second + 11]), abs=12)
    pauses = [b - a for a, b in pairwise(times)]
    assert max(pauses) > 0.9
    assert min(pauses) < 0.05


# Event loop time


ASKED = APIS[ApiKey.API_VERSIONS].request()


def test_who_asks_much_is_held_to_its_percentage_of_the_loop() -> None:
    # Receiving, handling and encoding is one piece of work, sending another.
    quota, each_s = 0.1, 2 * PIECE_CPU_S

    async def scenario(node: Simulated) -> None:
        clients = [await node.connect() for _ in range(3)]
        await set_quota(node, "request_percentage", quota)
        began, count, most_ms = node.now, 0, 0

        async def ask(client: RawClient) -> None:
            nonlocal count, most_ms
            while node.now - began < 60:
                answer = await client.call(ApiKey.API_VERSIONS, ASKED, 2)
                most_ms = max(most_ms, answer.throttle_time_ms)
                count += 1

        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(ask, client)
        allowed_s = quota / 100 * (node.now - began + WINDOW_S + 1)
        # A muted connection uses a little more when its task sleeps and wakes.
        assert 0.5 * allowed_s <= count * each_s <= allowed_s + 3 * each_s
        assert 0 < most_ms <= 1000  # capped, as Kafka does

    run_simulated(scenario)


@simulated()
async def test_an_answer_that_was_waited_for_is_metered_and_says_the_throttle_time(
    node: Simulated,
) -> None:
    client = await topic(node)
    await set_quota(node, "request_percentage", 1e-6)
    assert await client.delete("t") == 0
    asked = fetch_message({"u": [(0, 0)]}, max_wait_ms=100)
    answer = await client.call(ApiKey.FETCH, asked, FETCH_VERSION)
    assert answer.throttle_time_ms == 1000
    asked = DeleteTopicsRequest(topic_names=["u"], timeout_ms=1000)
    began = node.now
    answer = await client.call(ApiKey.DELETE_TOPICS, asked, 5)
    assert answer.throttle_time_ms == 1000
    assert node.now - began > 0.99  # muted for the first


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_every_version_that_can_say_a_throttle_time_does(api: Api) -> None:
    response = api.response
    if not hasattr(response(), "throttle_time_ms"):
        assert api.key in (
            ApiKey.DESCRIBE_QUORUM,
            ApiKey.UPDATE_FEATURES,
            ApiKey.SASL_HANDSHAKE,
            ApiKey.SASL_AUTHENTICATE,
            ApiKey.WRITE_TXN_MARKERS,
            ApiKey.AUTHENTICATE_REPLICA,
        )
        return
    said = []
    for version in range(api.min_version, api.max_version + 1):
        answer = response()
        answer.throttle_time_ms = 77
        said.append(decode(response, version, encode(answer, version)).throttle_time_ms)
    assert said == sorted(said)
    assert said[-1] == 77


# Shared allowances and their status

CHAPTER = {"C0": "pump", "C1": "pump", "C2": "sink", "C3": "drain", "C4": "drain"}


@pytest.mark.parametrize("default", [True, False])
def test_the_clients_of_the_chapter(default: bool) -> None:
    """C0 to C7: the clients that share an allowance, as their use shows."""
    alice = EntityPart(USER, "alice")

    async def scenario(node: Simulated) -> None:
        rules = [
            ((alice, EntityPart(CLIENT_ID, "pump")), 400.0),
            ((alice,), 200.0),
        ]
        if default:
            rules.append(((alice, EntityPart(CLIENT_ID, None)), 300.0))
        for parts, rate in rules:
            change = QuotaChange(parts, [QuotaOp("consumer_byte_rate", rate)])
            await change_quotas(node.worker.controller_client, change)
        quotas = node.worker.quotas
        status = QuotaStatus(quotas)
        seen = {}
        for number in range(8):
            client = Client(("10.0.0.1", number), "PLAINTEXT")
            client.principal = "User:bob" if number == 7 else "User:alice"
            client_id = CHAPTER.get(f"C{number}")
            quotas.fetched(client, client_id, 10**number)
        for number in range(8):
            principal = "User:bob" if number == 7 else "User:alice"
            use = status.use("consumer_byte_rate", principal, CHAPTER.get(f"C{number}"))
            seen[f"C{number}"] = None if use is None else (use.quota, int(use.used))
        if default:
            assert seen == {
                "C0": (400, 11),
                "C1": (400, 11),
                "C2": (300, 100),
                "C3": (300, 11000),
                "C4": (300, 11000),
                "C5": (300, 1100000),
                "C6": (300, 1100000),
                "C7": None,
            }
        else:
            shared = (200, 1111100)
            assert seen == {
                "C0": (400, 11),
                "C1": (400, 11),
                **dict.fromkeys(("C2", "C3", "C4", "C5", "C6"), shared),
                "C7": None,
            }

    run_simulated(scenario)


@simulated()
async def test_the_status_shows_use_delay_and_who_is_muted(node: Simulated) -> None:
    status = QuotaStatus(node.worker.quotas)
    assert list(status.uses()) == []
    await muted(node)
    (use,) = status.uses()
    assert (use.key, use.rule.precedence, use.quota) == ("producer_byte_rate", 8, 10.0)
    assert use.used > len(RECORD)
    assert use.left < 0
    assert use.delay_s == pytest.approx(-use.left / use.quota)
    assert use.delay_after_s(50) == pytest.approx(use.delay_s + 5)
    assert use.throttle_count == 1
    assert use.throttle_recent_s == use.throttle_longest_s == pytest.approx(use.delay_s, 0.01)
    (one,) = status.muted()
    assert (one.principal, one.client_id, one.key) == (
        "User:ANONYMOUS",
        "test",
        "producer_byte_rate",
    )
    assert 0 < one.left_s <= one.throttle_s
    rules = status.rules("producer_byte_rate", one.principal, one.client_id)
    assert [r.precedence for r in rules if r.value is not None] == [8]


@simulated(quota_producer_default=1000)
async def test_the_defaults_of_the_worker_hold_where_no_rule_speaks(node: Simulated) -> None:
    client = await topic(node)
    status = QuotaStatus(node.worker.quotas)
    name = ("producer_byte_rate", "User:ANONYMOUS", "test")
    assert (use := status.use(*name)) is not None
    assert (use.quota, use.rule.precedence) == (1000, BY_CONFIG)
    assert await send(client, batch_of(bytes(20_000))) > 9_000
    await set_quota(node, "producer_byte_rate", 1e9)
    assert (use := status.use(*name)) is not None
    assert use.quota == 1e9
    assert status.use("consumer_byte_rate", *name[1:]) is None


@simulated()
async def test_who_is_not_heard_of_is_forgotten_and_strangers_are_bounded(node: Simulated) -> None:
    await set_quota(node, "producer_byte_rate", 1000)
    kind = node.worker.quotas.produce
    for number in range(1000):
        kind.use(ClientName("User:u", f"stranger-{number}"), 1, kind.now(), STRANGER)
    assert len(kind) == 1000
    await trio.sleep(75)
    assert len(kind) == 0
    small = RateQuotas(
        "producer_byte_rate", kind._quotas, node.worker.clock, 11, 1.0, max_clients=50
    )
    for number in range(1000):
        small.use(ClientName("User:u", f"stranger-{number}"), 1, small.now(), STRANGER)
        assert len(small) <= 50


@simulated()
async def test_a_client_that_was_forgotten_shares_its_allowance_when_it_returns(
    node: Simulated,
) -> None:
    """A stranger makes room by it, while the name of the client is still in the cache."""
    for user in ("u", None):
        entity = (EntityPart(USER, user),)
        change = QuotaChange(entity, [QuotaOp("producer_byte_rate", 100.0)])
        await change_quotas(node.worker.controller_client, change)
    kind = RateQuotas(
        "producer_byte_rate", node.worker.quotas.produce._quotas, node.worker.clock, 11, 1.0
    )
    first, second = ClientName("User:u", "first"), ClientName("User:u", "second")
    kind.use(first, 10, kind.now(), STRANGER)
    await trio.sleep(60)
    kind.use(ClientName("User:stranger", "c"), 10, kind.now(), STRANGER)
    assert len(kind) == 1
    assert kind.use(first, 990, kind.now(), STRANGER) == 0
    assert first in [allowance.name for allowance in kind.in_use()]
    assert kind.use(second, 990, kind.now(), STRANGER) > 0
