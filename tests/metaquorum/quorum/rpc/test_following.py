"""A controller and a worker in different processes: discovery, metadata fetches and calls."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import metaquorum.quorum.rpc.feed
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import Endpoint
from metaquorum.quorum.channel.rpc_server import Caller
from metaquorum.quorum.controller.features import SUPPORTED_FEATURES
from metaquorum.quorum.controller.heartbeats import WorkerHeartbeat
from metaquorum.quorum.controller.internal_topics import CreateInternalTopic
from metaquorum.quorum.controller.proposer import Committed
from metaquorum.quorum.controller.topics import NewTopic, TopicOutcome
from metaquorum.quorum.controller.worker_registration import WorkerRegistration
from metaquorum.quorum.controller_server import ControllerRole
from metaquorum.quorum.rpc.controller_client import ControllerClient
from metaquorum.quorum.rpc.feed import RecentBatches
from metaquorum.quorum.rpc.follower import DivergedError, MetadataFollower
from metaquorum.quorum.rpc.links import QuorumLinks
from metaquorum.quorum.rpc.methods import (
    ALLOCATE_PRODUCER_IDS,
    CREATE_INTERNAL_TOPIC,
    CREATE_TOPICS,
    HEARTBEAT,
    REGISTER_WORKER,
    WATCH_QUORUM,
    AllocateProducerIds,
    QuorumView,
    RequestContext,
)
from metaquorum.quorum.rpc.session import ReplacedError, WorkerSession
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.metaquorum.quorum.channel.nodes import (
    CLUSTER,
    HOST,
    endpoint,
    in_trio,
    rpc_server,
    shared_runtime,
)
from tests.nodes import PATIENCE_S, free_port

ADDRESS = Endpoint("PLAINTEXT", HOST, 9092, "PLAINTEXT")
TIMEOUT_S = PATIENCE_S
CONTEXT = RequestContext("User:alice", "a client", "10.0.0.1")


def registration(worker_id: int = 7, incarnation: int = 1) -> WorkerRegistration:
    return WorkerRegistration(
        worker_id,
        bytes(15) + bytes((incarnation,)),
        (ADDRESS,),
        "host",
        features=SUPPORTED_FEATURES,
    )


@asynccontextmanager
async def controller(
    folder: Path,
    port: int | None = None,
    recent: RecentBatches | None = None,
    configs: dict[str, str] | None = None,
) -> AsyncIterator[tuple[ControllerRole, MetadataLoader, tuple[str, int]]]:
    """Run controller 1 alone; yield its address and its image."""
    folder.mkdir(exist_ok=True)
    port = port or free_port()
    loader = MetadataLoader(CLUSTER)
    role = ControllerRole(
        shared_runtime(), str(folder), 1, {1: (HOST, port)}, endpoint(1), loader, configs or {}
    )
    role.feed.recent = recent or RecentBatches()
    address = await role.listen(HOST, port)
    await role.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(role.run)
        nursery.start_soon(loader.run)
        yield role, loader, address
        nursery.cancel_scope.cancel()
    await role.close()


class Follower:
    """Worker 7, with only the components that process metadata."""

    def __init__(self, address: tuple[str, int], incarnation: int = 1) -> None:
        runtime = shared_runtime()
        self.loader = MetadataLoader(CLUSTER)
        asking = registration(incarnation=incarnation)
        self.links = QuorumLinks(runtime, endpoint(7), {1: address}, None, 7, asking.incarnation_id)
        self.follower = MetadataFollower(runtime, self.links, self.loader)
        self.controller_client = ControllerClient(runtime, self.links, self.loader)
        self.granted: list[int] = []
        self.session = WorkerSession(
            runtime, self.links, self.loader, asking, 2.0, granted=self.granted.append
        )

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.links.run)
            nursery.start_soon(self.follower.run)

    async def create(self, *names: str, timeout_s: float = TIMEOUT_S) -> list[TopicOutcome]:
        specs = [NewTopic(name, 3) for name in names]
        return await self.controller_client.create_topics(CONTEXT, specs, timeout_s=timeout_s)


@asynccontextmanager
async def following(address: tuple[str, int], *, beats: bool = True) -> AsyncIterator[Follower]:
    """Run a worker that is registered and, if it sends heartbeats, unfenced."""
    worker = Follower(address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await worker.loader.wait_applied(await worker.session.register())
        worker.loader.register(worker.session.guard)
        worker.loader.register(worker.session)
        nursery.start_soon(worker.loader.run)
        if beats:
            nursery.start_soon(worker.session.run)
            await worker.session.wait_unfenced()
        yield worker
        nursery.cancel_scope.cancel()


def same(one: MetadataLoader, other: MetadataLoader) -> bool:
    return list(one.image.records()) == list(other.image.records())


@in_trio
async def test_what_is_answered_is_committed_and_visible_here_and_there(tmp_path: Path) -> None:
    async with controller(tmp_path / "1") as (_, loader, address), following(address) as worker:
        outcomes = await worker.create("a", "b")
        assert [outcome.code for outcome in outcomes] == [ErrorCode.NONE] * 2
        assert {"a", "b"} == set(worker.loader.visible.topics)
        again = await worker.create("c", "a")
        assert [each.code for each in again] == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]
        assert same(loader, worker.loader)
        assert worker.follower.snapshots_loaded == 0
        request = AllocateProducerIds(7, worker.session.broker_epoch)
        allocated = await worker.controller_client.ask(
            ALLOCATE_PRODUCER_IDS, request, timeout_s=TIMEOUT_S
        )
        assert allocated.answer.count
        assert await worker.session.shut_down(TIMEOUT_S)
        assert loader.image.workers[7].fenced


@in_trio
async def test_who_is_far_behind_loads_a_snapshot_in_parts(tmp_path: Path) -> None:
    metaquorum.quorum.rpc.feed.PART_BYTES, before = 1000, metaquorum.quorum.rpc.feed.PART_BYTES  # type: ignore[misc]
    metaquorum.quorum.rpc.feed.SLICE_RECORDS, slice_before = (
        10,
        metaquorum.quorum.rpc.feed.SLICE_RECORDS,
    )  # type: ignore[misc]
    try:
        few = RecentBatches(max_batches=2)
        async with controller(tmp_path / "1", recent=few) as (_, loader, address):
            async with following(address) as worker:
                for number in range(40):
                    await worker.create(f"topic-{number}")
            async with following(address) as late:
                await late.create("one-more")
                assert late.follower.snapshots_loaded == 1
                assert same(loader, late.loader)
    finally:
        metaquorum.quorum.rpc.feed.PART_BYTES = before  # type: ignore[misc]
        metaquorum.quorum.rpc.feed.SLICE_RECORDS = slice_before  # type: ignore[misc]


@in_trio
async def test_a_worker_goes_on_with_a_controller_that_was_restarted(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        async with controller(tmp_path / "1") as (_, _, address):
            worker = Follower(address)
            nursery.start_soon(worker.run)
            await worker.session.register()
            nursery.start_soon(worker.loader.run)
            nursery.start_soon(worker.session.run)
            await worker.session.wait_unfenced()
            await worker.create("a")
        assert worker.links.controller_term is None or worker.links.controller_term.over.is_set()
        (refused,) = await worker.create("b", timeout_s=0.3)
        assert refused.code is ErrorCode.REQUEST_TIMED_OUT
        assert "no active controller is known" in str(refused.message)
        async with controller(tmp_path / "1", address[1]) as (_, loader, _):
            (made,) = await worker.create("c")
            assert made.code is ErrorCode.NONE
            assert same(loader, worker.loader)
            nursery.cancel_scope.cancel()


@in_trio
async def test_a_quorum_that_lost_what_was_committed_is_not_followed(tmp_path: Path) -> None:
    async def lose() -> None:
        async with trio.open_nursery() as nursery:
            async with controller(tmp_path / "1") as (_, _, address):
                async with following(address) as worker:
                    await worker.create("a", "b", "c")
                follower = Follower(address)
                nursery.start_soon(follower.run)
                await follower.loader.wait_applied(worker.loader.image.end_offset)
            async with controller(tmp_path / "lost", address[1]):
                await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await lose()
    assert caught.group_contains(DivergedError, match="lost committed metadata")


@in_trio
async def test_nobody_speaks_for_another_worker(tmp_path: Path) -> None:
    async with controller(tmp_path / "1") as (_, _, address), following(address) as worker:
        controller_term = await worker.links.wait_controller_term()
        for call in (
            controller_term.call(REGISTER_WORKER, registration(8), TIMEOUT_S),
            controller_term.call(HEARTBEAT, WorkerHeartbeat(8, 1, 1), TIMEOUT_S),
            controller_term.call(
                CREATE_INTERNAL_TOPIC,
                CreateInternalTopic(8, 1, "__consumer_offsets", 50, 3, 1 << 20),
                TIMEOUT_S,
            ),
        ):
            with pytest.raises(KafkaError) as refused:
                await call
            assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


SOON_EXPIRED = {"broker.session.timeout.ms": "300", "broker.heartbeat.interval.ms": "50"}


async def until_unregistered(role: ControllerRole) -> None:
    """Unregister worker 7 once its session has expired."""
    while True:
        try:
            await role.controller.worker_lifecycle.unregister_worker(7)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_REQUEST:
                raise
            await trio.sleep(0.01)
        else:
            return


@in_trio
async def test_a_worker_that_was_unregistered_registers_again(tmp_path: Path) -> None:
    """The worker stores the new broker epoch before its first heartbeat with it."""
    async with (
        controller(tmp_path / "1", configs=SOON_EXPIRED) as (role, loader, address),
        following(address, beats=False) as worker,
    ):
        before = worker.session.broker_epoch
        await until_unregistered(role)
        assert loader.image.departed[7].broker_epoch == before
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.session.run)
            await worker.session.wait_unfenced()
            nursery.cancel_scope.cancel()
        assert worker.granted == [before, worker.session.broker_epoch]
        assert loader.image.workers[7].broker_epoch == worker.session.broker_epoch > before
        assert loader.image.departed == {}
        assert not worker.session.is_replaced


@in_trio
async def test_a_process_whose_registration_another_has_taken_stops(tmp_path: Path) -> None:
    async def replace() -> None:
        async with (
            controller(tmp_path / "1", configs=SOON_EXPIRED) as (role, _, address),
            following(address, beats=False),
        ):
            await until_unregistered(role)
            await role.controller.worker_lifecycle.register_worker(registration(incarnation=2))
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await replace()
    assert caught.group_contains(ReplacedError, match="another process")


Script = list[Callable[[], Awaitable[Committed[list[TopicOutcome]]]]]


@asynccontextmanager
async def scripted(
    script: Script,
) -> AsyncIterator[tuple[ControllerClient, list[CREATE_TOPICS.request]]]:  # type: ignore[valid-type]
    """Yield a client of a controller that follows the script, and the requests that it received."""
    asked: list[object] = []

    async def answer(caller: Caller, method: str, payload: bytes) -> bytes:
        if method == WATCH_QUORUM.name:
            if WATCH_QUORUM.requests.decode(payload).known is not None:
                await trio.sleep_forever()
            return WATCH_QUORUM.answers.encode(QuorumView(1, 1, 1, True, 0))
        asked.append(CREATE_TOPICS.requests.decode(payload))
        return CREATE_TOPICS.answers.encode(await script.pop(0)())

    async with rpc_server(answer) as address, trio.open_nursery() as nursery:
        links = QuorumLinks(shared_runtime(), endpoint(7), {1: address}, None, 7)
        nursery.start_soon(links.run)
        yield ControllerClient(shared_runtime(), links, MetadataLoader(CLUSTER)), asked
        nursery.cancel_scope.cancel()


async def not_controller() -> Committed[list[TopicOutcome]]:
    raise KafkaError(ErrorCode.NOT_CONTROLLER, "not yet")


@in_trio
async def test_what_was_surely_not_done_is_asked_again_and_nothing_else() -> None:
    async def partly() -> Committed[list[TopicOutcome]]:
        fallen = KafkaError(ErrorCode.NOT_CONTROLLER, "fell")
        return Committed([TopicOutcome("a"), TopicOutcome.refused(fallen, "b")], 0)

    async def rest() -> Committed[list[TopicOutcome]]:
        return Committed([TopicOutcome("b")], 0)

    async with scripted([not_controller, partly, rest]) as (controller_client, asked):
        outcomes = await controller_client.create_topics(
            CONTEXT, [NewTopic("a"), NewTopic("b")], timeout_s=TIMEOUT_S
        )
        assert [(each.name, each.code) for each in outcomes] == [("a", 0), ("b", 0)]
        assert [[t.name for t in each.topics] for each in asked] == [["a", "b"], ["a", "b"], ["b"]]
        assert asked[0].context == CONTEXT


@in_trio
async def test_what_may_have_been_done_is_never_asked_again() -> None:
    async def lost() -> Committed[list[TopicOutcome]]:
        raise RuntimeError("the stream ends")

    async def silent() -> Committed[list[TopicOutcome]]:
        await trio.sleep_forever()
        raise AssertionError

    for end, timeout_s in ((lost, TIMEOUT_S), (silent, 0.3)):
        async with scripted([end]) as (controller_client, asked):
            (outcome,) = await controller_client.create_topics(
                CONTEXT, [NewTopic("a")], timeout_s=timeout_s
            )
            assert outcome.code is ErrorCode.REQUEST_TIMED_OUT
            assert "may or may not have been committed" in str(outcome.message)
            assert len(asked) == 1
