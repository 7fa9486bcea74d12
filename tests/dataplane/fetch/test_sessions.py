"""Fetch sessions: as plain state, and through a complete node."""

import gc
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.fetch.sessions import (
    MIN_AGE_S,
    FetchSession,
    FetchSessions,
    SessionPartition,
    next_epoch,
)
from metaquorum.dataplane.handlers.fetch.handler import handle_fetch
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.partition.waiting import FetchWaiter
from metaquorum.dataplane.scheduling.time_slices import at_once, step
from metaquorum.dataplane.worker.context import Request
from metaquorum.wire.messages.delete_topics import DeleteTopicsRequest
from metaquorum.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.serving import (
    RawClient,
    Simulated,
    batch_of,
    records_of,
    run_simulated,
    simulated,
)
from tests.examples import examples

BY_NAME, BY_ID = 12, 18
NOT_FOUND = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
WRONG_EPOCH = ErrorCode.INVALID_FETCH_SESSION_EPOCH
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

Asked = Mapping[tuple[str, int], int]  # offsets by topic and partition


class SessionClient:
    """Client of one fetch session that keeps the state of the responses."""

    def __init__(self, client: RawClient, version: int, ids: Mapping[str, bytes]) -> None:
        self.client = client
        self.version = version
        self.ids = dict(ids)
        self.session_id = 0
        self.epoch = 0
        self.told: dict[tuple[str, int], Any] = {}

    def message(self, asked: Asked, forget: Asked | None = None, **options: Any) -> FetchRequest:
        partition_max_bytes = options.pop("partition_max_bytes", 1 << 20)
        values: dict[str, Any] = {"session_id": self.session_id, "session_epoch": self.epoch}
        values |= options
        return FetchRequest(
            **({"max_wait_ms": 0, "min_bytes": 1} | values),
            topics=[
                FetchTopic(
                    topic=topic,
                    topic_id=self.ids.get(topic, bytes(16)),
                    partitions=[
                        FetchPartition(
                            partition=index,
                            fetch_offset=offset,
                            partition_max_bytes=partition_max_bytes,
                        )
                    ],
                )
                for (topic, index), offset in asked.items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic=t, topic_id=self.ids.get(t, bytes(16)), partitions=[i])
                for t, i in forget or {}
            ],
        )

    async def ask(self, asked: Asked, forget: Asked | None = None, **options: Any) -> None:
        await self.client.ask(ApiKey.FETCH, self.message(asked, forget, **options), self.version)

    async def answer(self) -> Any:
        answer = await self.client.answer(ApiKey.FETCH, self.version)
        if answer.error_code == 0 and answer.session_id:
            self.session_id = answer.session_id
            self.epoch = next_epoch(self.epoch)
        return answer

    async def fetch(
        self, asked: Asked | None = None, forget: Asked | None = None, **options: Any
    ) -> dict[tuple[str, int], Any]:
        """Return the rows of the response, which must not have an error of the whole request."""
        await self.ask(asked or {}, forget, **options)
        answer = await self.answer()
        assert answer.error_code == 0
        return self.rows(answer)

    async def error(self, asked: Asked | None = None, **options: Any) -> int:
        await self.ask(asked or {}, **options)
        answer = await self.answer()
        assert answer.responses == []
        return int(answer.error_code)

    def rows(self, answer: FetchResponse) -> dict[tuple[str, int], Any]:
        names = {topic_id: name for name, topic_id in self.ids.items()}
        return {
            (names[t.topic_id] if self.version >= 13 else t.topic, p.partition_index): p
            for t in answer.responses
            for p in t.partitions
        }


def in_session(scenario: Any, version: int = BY_NAME, **configs: Any) -> None:
    """Run the scenario on a node with topics t (2 partitions) and u (1), and two clients."""

    async def whole(sim: Simulated) -> None:
        client = await sim.connect()
        await client.create("t", 2)
        await client.create("u", 1)
        ids = {name: sim.worker.image.topic(name).topic_id for name in ("t", "u")}
        await scenario(sim, client, SessionClient(await sim.connect(), version, ids))

    run_simulated(whole, **configs)


ALL = {("t", 0): 0, ("t", 1): 0, ("u", 0): 0}


@pytest.mark.parametrize("version", [7, 11, BY_NAME, 13, BY_ID])
def test_a_session_is_told_only_news(version: int) -> None:
    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        assert set(await session.fetch(ALL)) == set(ALL)
        assert session.session_id
        assert await session.fetch() == {}
        await other.produce("t", batch_of(b"a"), partition=1)
        for _ in range(2):  # until the fetch offset changes
            rows = await session.fetch()
            assert list(rows) == [("t", 1)]
            assert [r.value for r in records_of(rows["t", 1])] == [b"a"]
        assert await session.fetch({("t", 1): 1}) == {}
        await other.produce("u", batch_of(b"b"))
        assert list(await session.fetch(forget={("t", 1): 0})) == [("u", 0)]
        await other.produce("t", batch_of(b"c"), partition=1)
        assert list(await session.fetch({("u", 0): 1})) == []
        rows = await session.fetch({("t", 1): 1})  # forgotten before, added again
        assert [r.value for r in records_of(rows["t", 1])] == [b"c"]

    in_session(scenario, version)


def test_versions_before_sessions_get_none() -> None:
    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        for _ in range(2):
            assert set(await session.fetch(ALL, session_epoch=-1, session_id=0)) == set(ALL)
        assert session.session_id == 0
        assert len(sim.worker.fetch_sessions) == 0

    in_session(scenario, 6)


def test_a_new_high_watermark_and_a_new_log_start_are_told_once() -> None:
    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        for _ in range(3):
            await other.produce("u", batch_of(b"a"))
        await session.fetch(ALL)
        await session.fetch({("u", 0): 3})
        partition = sim.worker.replica_manager.by_name("u", 0)
        partition.log.advance_log_start(2)
        partition.log_start_moved()
        rows = await session.fetch()
        assert rows["u", 0].log_start_offset == 2
        assert await session.fetch() == {}
        # A client without room for records still learns of the new high watermark.
        await other.produce("u", batch_of(b"a"))
        await other.produce("t", batch_of(bytes(1000)))
        rows = await session.fetch(max_bytes=1000)
        assert {key: row.high_watermark for key, row in rows.items()} == {("u", 0): 4, ("t", 0): 1}

    in_session(scenario)


def test_errors_are_told_as_long_as_they_last_and_what_follows_them_too() -> None:
    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        rows = await session.fetch({("u", 0): 0, ("new", 0): 0})
        assert rows["new", 0].error_code == UNKNOWN
        assert (await session.fetch())["new", 0].error_code == UNKNOWN
        await other.create("new")
        assert (await session.fetch())["new", 0].error_code == 0
        assert await session.fetch() == {}
        rows = await session.fetch({("u", 0): 7})
        assert rows["u", 0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert list(await session.fetch()) == [("u", 0)]
        assert (await session.fetch({("u", 0): 0}))["u", 0].error_code == 0
        assert await session.fetch() == {}

    in_session(scenario)


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_a_topic_that_was_made_again_is_another_one(version: int) -> None:
    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        await other.produce("u", batch_of(b"old"))
        await session.fetch(ALL)
        await session.fetch({("u", 0): 1})
        gone = DeleteTopicsRequest(topic_names=["u"], timeout_ms=9000)
        await other.call(ApiKey.DELETE_TOPICS, gone, 5)
        assert (await session.fetch())["u", 0].error_code == UNKNOWN
        await other.create("u")
        row = (await session.fetch())["u", 0]
        if version == BY_NAME:
            assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert (await session.fetch({("u", 0): 0}))["u", 0].error_code == 0
        else:
            assert row.error_code == ErrorCode.INCONSISTENT_TOPIC_ID
            await session.fetch(forget={("u", 0): 0})
            session.ids["u"] = sim.worker.image.topic("u").topic_id
            assert (await session.fetch({("u", 0): 0}))["u", 0].error_code == 0
        assert await session.fetch() == {}
        await other.produce("u", batch_of(b"new"))
        assert [r.value for r in records_of((await session.fetch())["u", 0])] == [b"new"]

    in_session(scenario, version)


def test_a_session_is_continued_in_its_own_order_and_by_its_own_kind() -> None:
    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        assert await session.error(session_id=77, session_epoch=1) == NOT_FOUND
        await session.fetch(ALL)
        for epoch in (2, 7, 2**31 - 1, -2, -(2**31)):
            assert await session.error(session_epoch=epoch) == WRONG_EPOCH
        session.version = BY_ID
        assert await session.error() == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.version = BY_NAME
        assert await session.fetch() == {}
        # A full request closes the session that it names; with epoch -1 it opens no other one.
        first = session.session_id
        await session.fetch(ALL, session_epoch=0)
        session.epoch = 1
        assert session.session_id != first
        assert await session.error(session_id=first) == NOT_FOUND
        assert set(await session.fetch(ALL, session_epoch=-1)) == set(ALL)
        assert await session.error() == NOT_FOUND
        assert len(sim.worker.fetch_sessions) == 0
        assert not any(p.waiters for p in sim.worker.replica_manager)

    in_session(scenario)


def test_a_session_that_forgets_everything_is_over() -> None:
    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        await session.fetch(ALL)
        await session.ask({}, forget=ALL, max_wait_ms=9000)
        answer = await session.answer()
        assert (answer.error_code, answer.session_id, answer.responses) == (0, 0, [])
        assert await session.error() == NOT_FOUND
        assert not any(p.waiters for p in sim.worker.replica_manager)

    in_session(scenario)


def test_no_partition_starves_behind_a_small_max_bytes() -> None:
    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        for topic, index in ALL:
            for _ in range(4):
                await other.produce(topic, batch_of(bytes(1000)), partition=index)
        offsets = dict(ALL)
        await session.fetch(ALL, max_bytes=1)
        seen = []
        for _ in range(9):
            rows = await session.fetch(offsets, max_bytes=1)
            given = [key for key, row in rows.items() if row.records]
            assert len(given) == 1
            offsets[given[0]] += 1
            seen.append(given[0])
        assert {key: seen.count(key) for key in ALL} == dict.fromkeys(ALL, 3)

    in_session(scenario)


def test_a_long_poll_of_a_session_ends_when_enough_has_come() -> None:
    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        await session.fetch(ALL)
        await session.ask({}, max_wait_ms=60_000, min_bytes=2500)
        for topic, index in (("t", 0), ("u", 0), ("t", 0)):
            began = sim.now
            await trio.sleep(1)
            await other.produce(topic, batch_of(bytes(1000)), partition=index)
        answer = await session.answer()
        assert sim.now - began < 1.2
        rows = session.rows(answer)
        assert {key: len(records_of(row)) for key, row in rows.items()} == {
            ("t", 0): 2,
            ("u", 0): 1,
        }
        began = sim.now
        assert await session.fetch({("t", 0): 2, ("u", 0): 1}, max_wait_ms=3000) == {}
        assert 3 <= sim.now - began < 3.2

    in_session(scenario)


def test_no_news_is_lost_whenever_it_comes() -> None:
    """A change between requests, during a request or in a long poll is reported soon."""

    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        random = Random(3)
        await session.fetch(ALL)
        offsets, sent = dict(ALL), dict.fromkeys(ALL, 0)
        produced_s: dict[tuple[tuple[str, int], int], float] = {}

        async def produce() -> None:
            for _ in range(300):
                await trio.sleep(random.choice([0, 0.0001, 0.001, 0.1]))
                key = random.choice(list(ALL))
                produced_s[key, sent[key]] = sim.now
                sent[key] += 1
                await other.produce(key[0], batch_of(b"x"), partition=key[1])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            changed: dict[tuple[str, int], int] = {}
            while sum(offsets.values()) < 300:
                rows = await session.fetch(changed, max_wait_ms=20_000)
                changed = {}
                for key, row in rows.items():
                    for record in records_of(row):
                        assert record.offset == offsets[key]
                        assert sim.now - produced_s[key, record.offset] < 0.5
                        changed[key] = offsets[key] = record.offset + 1
                if random.random() < 0.3:
                    await trio.sleep(random.choice([0.001, 0.2]))

    in_session(scenario)


def test_whoever_is_overtaken_in_its_long_poll_is_told_so() -> None:
    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        await session.fetch(ALL)
        await session.ask({}, max_wait_ms=60_000)
        while not sim.worker.long_polls:
            await trio.sleep(0.01)
        began = sim.now
        second = SessionClient(await sim.connect(), BY_NAME, {})
        second.session_id, second.epoch = session.session_id, session.epoch + 1
        assert await second.fetch() == {}
        answer = await session.answer()
        assert answer.error_code == WRONG_EPOCH
        assert sim.now - began < 1

    in_session(scenario)


@pytest.mark.parametrize("how", ["closed", "evicted"])
def test_a_long_poll_ends_with_its_session(how: str) -> None:
    """The poll is notified of no further record: without that it would last for max.wait.ms."""

    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        await session.fetch(ALL)
        await session.ask({}, max_wait_ms=600_000)
        while not sim.worker.long_polls:
            await trio.sleep(0.01)
        await trio.sleep(MIN_AGE_S + 1)
        began = sim.now
        second = SessionClient(await sim.connect(), BY_NAME, {})
        if how == "closed":
            second.session_id = session.session_id
        await second.fetch({("t", 0): 0}, session_epoch=-1 if how == "closed" else 0)
        answer = await session.answer()
        assert (answer.error_code, answer.responses) == (0, [])
        assert sim.now - began < 1
        assert await session.error() == NOT_FOUND

    in_session(scenario, max_incremental_fetch_session_cache_slots=1)


def test_the_isolation_level_may_change_within_a_session() -> None:
    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        await session.fetch(ALL)
        assert await session.fetch(isolation_level=1) == {}
        await other.produce("u", batch_of(b"a"))
        rows = await session.fetch(isolation_level=1)
        assert rows["u", 0].aborted_transactions == []

    in_session(scenario)


def test_a_rack_is_accepted_and_no_other_replica_is_preferred() -> None:
    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        rows = await session.fetch(ALL, rack_id="a")
        assert {row.preferred_read_replica for row in rows.values()} == {-1}

    in_session(scenario)


def test_a_node_without_slots_gives_no_sessions() -> None:
    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        assert set(await session.fetch(ALL)) == set(ALL)
        assert session.session_id == 0

    in_session(scenario, max_incremental_fetch_session_cache_slots=0)


MANY = 130  # partitions: more than two pieces of work


@pytest.mark.parametrize("continues", [False, True])
@simulated()
async def test_no_news_is_lost_between_the_pieces_of_a_large_request(
    sim: Simulated, continues: bool
) -> None:
    """A topic is deleted after each piece in turn: this response or the next one shows it."""
    other = await sim.connect()
    await other.create("t", MANY)
    context = Request(BY_NAME, "test", Client(("127.0.0.1", 1), "PLAINTEXT"))

    def fetch(asked: Asked, session_id: int = 0, epoch: int = 0) -> Any:
        session = SessionClient(other, BY_NAME, {})
        session.session_id, session.epoch = session_id, epoch
        return handle_fetch(sim.worker, context, session.message(asked))

    pieces, is_over = 0, False
    while not is_over:
        pieces += 1
        gone = f"gone{pieces}"
        await other.create(gone)
        epoch, session_id = 0, 0
        if continues:
            first = fetch({("t", 0): 0})
            epoch, session_id = 1, first.session_id
        work = fetch({(gone, 0): 0} | {("t", index): 0 for index in range(MANY)}, session_id, epoch)
        left = pieces
        while (done := step(work)) is None:
            left -= 1
            if not left:
                assert await other.delete(gone) == 0
        (answer,) = done
        if is_over := left > 0:
            assert await other.delete(gone) == 0
        after = fetch({}, answer.session_id, epoch + 1)
        told = [
            row.error_code
            for each in (answer, after)
            for topic in each.responses
            if topic.topic == gone
            for row in topic.partitions
        ]
        assert told[-1:] == [UNKNOWN], f"deleted after piece {pieces}: {told}"
        sim.worker.fetch_sessions.close(answer.session_id)
    assert pieces > 5
    assert not any(p.waiters for p in sim.worker.replica_manager)


@pytest.mark.parametrize("piece", [1, 2, 3, 4])
@simulated()
async def test_what_is_forgotten_while_a_large_answer_is_made_stays_forgotten(
    sim: Simulated, piece: int
) -> None:
    other = await sim.connect()
    await other.create("t", MANY)
    for index in range(MANY):
        await other.produce("t", batch_of(b"x"), partition=index)
    context = Request(BY_NAME, "test", Client(("127.0.0.1", 1), "PLAINTEXT"))
    session = SessionClient(other, BY_NAME, {})

    def fetch(asked: Asked, forget: Asked, epoch: int) -> Any:
        session.epoch = epoch
        return handle_fetch(sim.worker, context, session.message(asked, forget))

    def rows(answer: FetchResponse) -> set[int]:
        return {index for _, index in session.rows(answer)}

    every = range(MANY)
    first = at_once(fetch({("t", index): 0 for index in every}, {}, 0))
    session.session_id = first.session_id
    overtaken = fetch({}, {}, 1)
    for _ in range(piece):
        step(overtaken)
    answer = at_once(fetch({}, {("t", index): 0 for index in (0, 70, 129)}, 2))
    assert rows(answer) == {*every} - {0, 70, 129}
    assert at_once(overtaken).error_code == WRONG_EPOCH
    assert rows(at_once(fetch({}, {}, 3))) == {*every} - {0, 70, 129}
    sim.worker.fetch_sessions.close(session.session_id)
    assert not any(p.waiters for p in sim.worker.replica_manager)


def kept() -> int:
    """Return the number of sessions, their partitions and long polls in memory."""
    kinds = (FetchSession, SessionPartition, FetchWaiter)
    return sum(type(one) in kinds for one in gc.get_objects())


def test_a_session_that_is_over_is_out_of_memory_with_its_long_polls() -> None:
    async def scenario(sim: Simulated, other: RawClient, session: SessionClient) -> None:
        gc.collect()
        gc.disable()
        try:
            before = kept()
            for _ in range(3):
                session.session_id = session.epoch = 0
                await session.fetch(ALL)
                await session.fetch({}, max_wait_ms=100)
                assert kept() > before
                await session.fetch(ALL, session_epoch=-1, max_wait_ms=100)
            assert len(sim.worker.fetch_sessions) == 0
            assert kept() == before
        finally:
            gc.enable()

    in_session(scenario)


# The cache without a node


def new(cache: FetchSessions, size: int, now_s: float) -> FetchSession | None:
    session = cache.create(size, now_s, has_topic_ids=False)
    if session is not None:
        for index in range(size):
            session.ask("t", b"", FetchPartition(partition=index))
        cache.resized(session, 0)
    return session


def use(cache: FetchSessions, session: FetchSession, now_s: float, **more: Any) -> None:
    message = FetchRequest(session_id=session.id, session_epoch=session.epoch, **more)
    cache.use(message, now_s, has_topic_ids=False)


def test_the_session_unused_longest_goes_first() -> None:
    cache = FetchSessions(2, Random(1))
    first, second = new(cache, 5, 0), new(cache, 5, 1)
    assert first is not None
    assert second is not None
    assert new(cache, 9, MIN_AGE_S) is None  # both are too recent
    use(cache, first, MIN_AGE_S)
    assert new(cache, 1, MIN_AGE_S + 1.1) is not None  # the size does not matter
    assert (first.is_open, second.is_open) == (True, False)
    assert cache.eviction_count == 1


def test_the_smallest_old_session_goes_for_a_larger_one() -> None:
    cache = FetchSessions(2, Random(1))
    small, large = new(cache, 2, 0), new(cache, 5, 0)
    assert small is not None
    assert large is not None
    for now_s in (60, MIN_AGE_S + 1):
        use(cache, small, now_s)
        use(cache, large, now_s)
    assert new(cache, 2, MIN_AGE_S + 2) is None
    assert new(cache, 3, MIN_AGE_S + 2) is not None
    assert (small.is_open, large.is_open) == (False, True)


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_a_session_that_is_closed_between_pieces_is_gone_and_counts_no_more(pieces: int) -> None:
    cache = FetchSessions(9, Random(1))
    session = new(cache, 1, 0)
    assert session is not None
    partitions = [FetchPartition(partition=index) for index in range(1, MANY)]
    message = FetchRequest(
        session_id=session.id,
        session_epoch=1,
        topics=[FetchTopic(topic="t", partitions=partitions)],
    )
    work = cache.use_in_pieces(message, 1, has_topic_ids=False)
    for _ in range(pieces):
        step(work)
    cache.close(session.id)
    with pytest.raises(KafkaError) as refused:
        at_once(work)
    assert refused.value.code == NOT_FOUND
    assert (len(cache), cache.partition_count) == (0, 0)


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_whoever_is_overtaken_while_it_changes_a_session_changes_no_more(pieces: int) -> None:
    cache = FetchSessions(9, Random(1))
    session = new(cache, 1, 0)
    assert session is not None
    partitions = [FetchPartition(partition=index) for index in range(1, MANY)]
    message = FetchRequest(
        session_id=session.id,
        session_epoch=1,
        topics=[FetchTopic(topic="t", partitions=partitions)],
    )
    overtaken = cache.use_in_pieces(message, 1, has_topic_ids=False)
    for _ in range(pieces):
        step(overtaken)
    use(cache, session, 2)
    count = cache.partition_count
    with pytest.raises(KafkaError) as refused:
        at_once(overtaken)
    assert refused.value.code == WRONG_EPOCH
    assert cache.partition_count == len(session.partitions) == count
    use(cache, session, 3)


def test_partitions_are_bounded_over_all_sessions() -> None:
    cache = FetchSessions(9, Random(1), partitions_max=10)
    first = new(cache, 6, 0)
    assert first is not None
    assert new(cache, 5, 0) is None
    assert new(cache, 11, 1e6) is None
    assert new(cache, 4, 0) is not None
    grown = [FetchTopic(topic="t", partitions=[FetchPartition(partition=6)])]
    with pytest.raises(KafkaError) as refusal:
        use(cache, first, 1, topics=grown)
    assert refusal.value.code == NOT_FOUND
    assert (len(cache), cache.partition_count) == (1, 4)


def test_epochs_go_round_without_zero() -> None:
    assert [next_epoch(n) for n in (0, 1, 2**31 - 2, 2**31 - 1)] == [1, 2, 2**31 - 1, 1]


@examples(60)
@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 90)), max_size=60))
def test_counts_agree_whatever_is_done(slots: int, steps: list[tuple[int, int]]) -> None:
    cache = FetchSessions(slots, Random(1), partitions_max=12)
    sessions: list[FetchSession] = []
    now_s = 0.0
    for what, pause_s in steps:
        now_s += pause_s
        if what < 3 or not sessions:
            made = new(cache, what + 1, now_s)
            sessions += [made] if made is not None else []
        elif (session := sessions[pause_s % len(sessions)]).is_open:
            size = len(session.partitions)
            if what == 3:
                use(cache, session, now_s)
            elif what == 4:
                gone = ForgottenTopic(topic="t", partitions=[size - 1])
                use(cache, session, now_s, forgotten_topics_data=[gone])
            else:
                cache.close(session.id)
        alive = [session for session in sessions if session.is_open]
        assert len(cache) == len(alive) <= slots
        assert cache.partition_count == sum(len(session.partitions) for session in alive) <= 12
