"""Requests of a follower to its leader, which the test plays."""

import contextlib
import logging
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from metaquorum.dataplane.fetch.session_client import FetchLimits
from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication import follower_state, replica_fetcher
from metaquorum.dataplane.replication.replica_authentication import ReplicaAuthenticator
from metaquorum.dataplane.replication.replica_fetcher import (
    FETCH_VERSION,
    FIRST_BACKOFF_S,
    IN_PLACE_BYTES,
    PIECE_BATCHES,
    FetcherConfig,
    FollowerEvents,
    LeaderAddress,
    ReplicaFetcher,
)
from metaquorum.quorum.channel.handshake import Refusal, decode_hello
from metaquorum.runtime import Connection, Disk, Listener, Runtime, StorageError
from metaquorum.runtime.system import RealDisk, real_runtime
from metaquorum.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from metaquorum.wire.messages.authenticate_replica import (
    AuthenticateReplicaRequest,
    AuthenticateReplicaResponse,
)
from metaquorum.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import APIS, ApiKey
from metaquorum.wire.protocol.headers import encode_response
from metaquorum.wire.protocol.request_header import decode_request_header
from metaquorum.wire.schema.codec import decode
from tests.dataplane.log.logs import EPOCH, SMALL, append_many, make_batch, open_log
from tests.dataplane.partition.test_partition import config_of
from tests.dataplane.replication.replicas import Setting
from tests.dataplane.serving import batch_of
from tests.metaquorum.quorum.channel.nodes import endpoint
from tests.nodes import PATIENCE_S

WAIT_MS = 500
CONFIG = FetcherConfig(FetchLimits(WAIT_MS, 1, 1 << 20), 1 << 20, 0.1)
TOPIC_ID = bytes(16)
T = TypeVar("T")


class Leader:
    """Leader's side of one connection of the follower."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._received = bytearray()
        self._correlation_id = 0

    async def _frame(self, api: ApiKey) -> tuple[int, memoryview]:
        """Return the version and the body of the next request, which must be of that API."""
        room = bytearray(1 << 16)
        while len(self._received) < 4 or len(self._received) < 4 + self._size:
            count = await self._connection.receive_into(room)
            if not count:
                raise EOFError
            self._received += room[:count]
        frame = bytes(self._received[4 : 4 + self._size])
        del self._received[: 4 + self._size]
        header, body = decode_request_header(memoryview(frame))
        assert header.api_key == api
        self._correlation_id = header.correlation_id
        return header.api_version, memoryview(frame)[body:]

    @property
    def _size(self) -> int:
        return int(struct.unpack_from(">i", self._received)[0])

    async def tell_versions(self, *, without: ApiKey | None = None) -> None:
        version, _ = await self._frame(ApiKey.API_VERSIONS)
        keys = [
            ApiVersion(api_key=each.key, min_version=each.min_version, max_version=each.max_version)
            for each in APIS.values()
            if each.key != without
        ]
        api = APIS[ApiKey.API_VERSIONS]
        message = ApiVersionsResponse(api_keys=keys)
        data = encode_response(api, version, self._correlation_id, message)
        await self._connection.send(data)

    async def authenticate(self, address: tuple[str, int]) -> None:
        """Complete the handshake with the follower: both sides prove their worker ids."""
        replicas = ReplicaAuthenticator(
            endpoint(1, runtime=real_runtime()), "IN", address, lambda: 0.0
        )
        client = Client(("127.0.0.1", 1), "IN")
        for _ in range(2):
            await self.answer_token(replicas.respond(client, await self.token()))
        assert client.replica.worker_id == 2

    async def token(self) -> bytes:
        """Return the follower's next message of the handshake."""
        version, body = await self._frame(ApiKey.AUTHENTICATE_REPLICA)
        return bytes(decode(AuthenticateReplicaRequest, version, body).auth_bytes)

    async def answer_token(self, token: bytes) -> None:
        message = AuthenticateReplicaResponse(auth_bytes=token)
        api = APIS[ApiKey.AUTHENTICATE_REPLICA]
        await self._connection.send(encode_response(api, 0, self._correlation_id, message))

    async def asked(self) -> FetchRequest:
        version, body = await self._frame(ApiKey.FETCH)
        return decode(FetchRequest, version, body)

    async def answer(
        self, error: ErrorCode = ErrorCode.NONE, records: bytes = b"", **codes: ErrorCode
    ) -> None:
        """Respond with these partitions, called p0, p1 ..., without new records."""
        rows = [
            PartitionData(
                partition_index=int(name[1:]), error_code=code, high_watermark=0, records=records
            )
            for name, code in codes.items()
        ]
        topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=rows)] if rows else []
        await self.answer_rows(topics, error)

    async def parts(self, index: int, end_offset: int) -> None:
        """Respond with a diverging epoch for that partition."""
        row = PartitionData(
            partition_index=index,
            high_watermark=0,
            diverging_epoch=EpochEndOffset(epoch=EPOCH, end_offset=end_offset),
        )
        await self.answer_rows([FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[row])])

    async def answer_rows(
        self, topics: list[FetchableTopicResponse], error: ErrorCode = ErrorCode.NONE
    ) -> None:
        message = FetchResponse(error_code=error, session_id=0 if error else 7, responses=topics)
        api = APIS[ApiKey.FETCH]
        data = encode_response(api, FETCH_VERSION, self._correlation_id, message)
        await self._connection.send(data)


def replica(folder: Path, index: int, config: LogConfig = SMALL) -> Partition:
    log = open_log(folder / f"t-{index}", config)
    return Partition("t", TOPIC_ID, index, Setting(2).context, log, config_of())


NO_EVENTS = FollowerEvents(
    lambda *_: None,  # type: ignore[arg-type,return-value]
    lambda *_: None,
    lambda *_: None,  # type: ignore[arg-type,return-value]
)
Story = Callable[[ReplicaFetcher, Callable[[], Awaitable[Leader]]], Awaitable[None]]


def following(
    scenario: Story,
    *,
    is_impostor: bool = False,
    events: FollowerEvents = NO_EVENTS,
    is_earlier: bool = False,
    verifies: bool = True,
    disk: Disk | None = None,
) -> None:
    """Run `scenario` with a fetcher and a leader, which the metadata call an earlier one or not.

    `verifies`: whether it serves AuthenticateReplica.
    """
    connections: list[Connection] = []

    async def accept(listener: Listener) -> Leader:
        connections.append(await listener.accept())
        leader = Leader(connections[-1])
        await leader.tell_versions(without=None if verifies else ApiKey.AUTHENTICATE_REPLICA)
        if verifies and not is_impostor:
            await leader.authenticate(listener.address)
        return leader

    async def main() -> None:
        runtime: Runtime = real_runtime()
        if disk is not None:
            runtime = replace(runtime, disk=disk)
        listener = await runtime.network.listen("127.0.0.1", 0)
        fetcher = ReplicaFetcher(
            2,
            lambda: 8,
            1,
            runtime,
            CONFIG,
            lambda: LeaderAddress(*listener.address, broker_epoch=7, is_earlier=is_earlier),
            events,
            endpoint(2, runtime=runtime),
            random.Random(0),
        )
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetcher.run)
                await scenario(fetcher, lambda: accept(listener))
                nursery.cancel_scope.cancel()
        for each in (listener, *connections):
            each.close()

    trio.run(main)


def partitions_in(request: FetchRequest) -> list[int]:
    return [each.partition for topic in request.topics for each in topic.partitions]


@pytest.mark.parametrize("others", [1, 3])
def test_a_partition_that_failed_for_now_is_not_left_waiting_for_a_long_poll_of_others(
    tmp_path: Path, others: int
) -> None:
    async def scenario(fetcher: ReplicaFetcher, accept: Callable[[], Awaitable[Leader]]) -> None:
        for index in range(1 + others):
            fetcher.add(replica(tmp_path, index), leader_epoch=1)
        leader = await accept()
        first = await leader.asked()
        assert partitions_in(first) == list(range(1 + others))
        assert first.max_wait_ms == WAIT_MS
        # The leader does not know yet that it leads.
        await leader.answer(p0=ErrorCode.UNKNOWN_LEADER_EPOCH)
        while not partitions_in(asked := await leader.asked()):
            assert 1 <= asked.max_wait_ms <= FIRST_BACKOFF_S * 1000
            await leader.answer()
        assert partitions_in(asked) == [0]
        assert asked.max_wait_ms == WAIT_MS

    following(scenario)


def test_a_leader_of_an_earlier_version_is_sent_no_proof(tmp_path: Path) -> None:
    async def scenario(fetcher: ReplicaFetcher, accept: Callable[[], Awaitable[Leader]]) -> None:
        fetcher.add(replica(tmp_path, 0), leader_epoch=1)
        leader = await accept()
        asked = await leader.asked()
        assert partitions_in(asked) == [0]
        assert asked.replica_state == ReplicaState(replica_id=2, replica_epoch=8)

    following(scenario, is_earlier=True, verifies=False)


def test_a_leader_with_an_old_registration_that_verifies_proofs_is_sent_one(tmp_path: Path) -> None:
    """The follower may not have the registration of the upgraded leader yet."""

    async def scenario(fetcher: ReplicaFetcher, accept: Callable[[], Awaitable[Leader]]) -> None:
        fetcher.add(replica(tmp_path, 0), leader_epoch=1)
        leader = await accept()
        assert partitions_in(await leader.asked()) == [0]

    following(scenario, is_earlier=True)


def test_a_leader_that_must_prove_its_id_cannot_omit_the_proof(tmp_path: Path) -> None:
    async def scenario(fetcher: ReplicaFetcher, accept: Callable[[], Awaitable[Leader]]) -> None:
        fetcher.add(replica(tmp_path, 0), leader_epoch=1)
        leader = await accept()
        assert await leader.token()

    following(scenario, verifies=False)


def test_a_poll_is_given_up_for_another_partition(tmp_path: Path) -> None:
    async def scenario(fetcher: ReplicaFetcher, accept: Callable[[], Awaitable[Leader]]) -> None:
        fetcher.add(replica(tmp_path, 0), leader_epoch=1)
        leader = await accept()
        for number in range(20):
            assert partitions_in(await leader.asked()) == ([] if number else [0])
            if number < 19:
                await leader.answer()
        fetcher.add(replica(tmp_path, 1), leader_epoch=1)
        leader = await accept()
        assert partitions_in(await leader.asked()) == [0, 1]

    following(scenario)


def test_a_leader_that_does_not_know_the_broker_epoch_yet_is_asked_again(tmp_path: Path) -> None:
    """The follower retries on the same connection with a full request."""

    async def scenario(fetcher: ReplicaFetcher, accept: Callable[[], Awaitable[Leader]]) -> None:
        fetcher.add(replica(tmp_path, 0), leader_epoch=1)
        leader = await accept()
        for _ in range(3):
            asked = await leader.asked()
            assert (partitions_in(asked), asked.session_epoch) == ([0], 0)
            assert asked.replica_state is not None
            assert asked.replica_state.replica_epoch == 8
            await leader.answer(ErrorCode.STALE_BROKER_EPOCH)
        await leader.asked()
        await leader.answer(p0=ErrorCode.NONE)
        assert (await leader.asked()).session_epoch == 1

    following(scenario)


def test_refusals_before_a_response_do_not_count_for_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each registration of a worker is followed by a few; only many in a row are logged."""
    monkeypatch.setattr(replica_fetcher, "MOST_PASSING", 3)

    async def scenario(fetcher: ReplicaFetcher, accept: Callable[[], Awaitable[Leader]]) -> None:
        fetcher.add(replica(tmp_path, 0), leader_epoch=1)
        leader = await accept()
        for refusals in (2, 2, 3):
            assert "STALE_BROKER_EPOCH" not in caplog.text
            for _ in range(refusals):
                await leader.asked()
                await leader.answer(ErrorCode.STALE_BROKER_EPOCH)
            await leader.asked()
            await leader.answer(p0=ErrorCode.NONE)
        await leader.asked()
        assert caplog.text.count("STALE_BROKER_EPOCH") == 1

    with caplog.at_level(logging.INFO, logger="metaquorum.dataplane"):
        following(scenario)


def test_an_impostor_that_sends_the_followers_own_proof_back_is_not_believed(
    tmp_path: Path,
) -> None:
    async def scenario(fetcher: ReplicaFetcher, accept: Callable[[], Awaitable[Leader]]) -> None:
        follower = replica(tmp_path, 0)
        fetcher.add(follower, leader_epoch=1)
        impostor = await accept()
        hello = decode_hello(await impostor.token())
        mine = hello._replace(sender=hello.addressee, addressee=hello.sender, nonce=bytes(32))
        await impostor.answer_token(bytes([Refusal.OK]) + mine.encode())
        proof = await impostor.token()
        await impostor.answer_token(bytes([Refusal.OK]) + proof)
        await impostor.asked()  # sent together with the proof
        with contextlib.suppress(OSError):
            await impostor.answer(p0=ErrorCode.NONE, records=batch_of(b"forged"))
        with pytest.raises((EOFError, OSError)):
            await impostor.asked()
        assert follower.log.log_end_offset == 0

    following(scenario, is_impostor=True)


@pytest.mark.parametrize("lost_during", ["nothing", "record", "checkpoint"])
def test_a_cut_is_not_made_for_a_leader_that_is_followed_no_more(
    tmp_path: Path, lost_during: str
) -> None:
    """The ledger and the checkpoints are written first; meanwhile this worker may become leader."""
    partition = replica(tmp_path, 0)
    append_many(partition.log, 5)
    fetchers: list[ReplicaFetcher] = []
    written: list[str] = []

    def happen(what: str) -> None:
        written.append(what)
        if what == lost_during:
            fetchers[0].remove((TOPIC_ID, 0))
            fetchers[0].add(replica(tmp_path, 1), leader_epoch=1)

    async def truncating(cuts: object) -> None:
        happen("record")

    @asynccontextmanager
    async def cutting(kept: object) -> AsyncIterator[dict[Partition, StorageError]]:
        happen("checkpoint")
        yield {}

    async def scenario(fetcher: ReplicaFetcher, accept: Callable[[], Awaitable[Leader]]) -> None:
        fetchers.append(fetcher)
        fetcher.add(partition, leader_epoch=EPOCH + 1)
        fetcher.add(replica(tmp_path, 2), leader_epoch=1)
        leader = await accept()
        await leader.asked()
        await leader.parts(0, 4)
        with trio.move_on_after(PATIENCE_S):
            asked = await leader.asked()
            while asked.session_epoch < 1:
                asked = await leader.asked()
        assert partition.log.log_end_offset == (4 if lost_during == "nothing" else 10)
        assert written[:2] == ["record", "checkpoint"]

    following(scenario, events=FollowerEvents(truncating, lambda *_: None, cutting))


class WatchedDisk(RealDisk):
    """Counts the calls in worker threads, and calls `started` before each."""

    def __init__(self, started: Callable[[int], None] = lambda _: None) -> None:
        self.calls = 0
        self._started = started

    async def run(self, function: Callable[[], T]) -> T:
        self.calls += 1
        self._started(self.calls)
        return await super().run(function)


def large_row(batches: int) -> PartitionData:
    """Return a row that is not appended in place, of that many batches of a record each."""
    value = bytes(IN_PLACE_BYTES // batches)
    records = b"".join(
        make_batch(1, base_offset=number, leader_epoch=EPOCH, value=value)
        for number in range(batches)
    )
    assert len(records) > IN_PLACE_BYTES
    return PartitionData(partition_index=0, high_watermark=batches, records=records)


@pytest.mark.parametrize("batches", [1, PIECE_BATCHES, PIECE_BATCHES + 1, 3 * PIECE_BATCHES])
@pytest.mark.parametrize("is_beside", [False, True])
def test_a_large_row_is_appended_in_pieces_and_larger_ones_in_a_worker_thread(
    tmp_path: Path, batches: int, is_beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_beside:
        monkeypatch.setattr(follower_state, "BESIDE_BYTES", 0)
    partition = replica(tmp_path, 0, LogConfig())
    disk = WatchedDisk()
    row = large_row(batches)

    async def scenario(fetcher: ReplicaFetcher, accept: Callable[[], Awaitable[Leader]]) -> None:
        fetcher.add(partition, leader_epoch=EPOCH)
        leader = await accept()
        await leader.asked()
        await leader.answer_rows([FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[row])])
        asked = await leader.asked()
        assert asked.topics[0].partitions[0].fetch_offset == batches

    following(scenario, disk=disk)
    assert disk.calls == (-(-batches // PIECE_BATCHES) if is_beside else 0)
    assert partition.high_watermark == batches
    log = partition.log
    assert log.read(0, 1 << 20, log.log_end_offset, is_whole=True).read() == row.records


def test_a_small_row_is_written_in_a_worker_thread_while_the_disk_holds_up_writers(
    tmp_path: Path,
) -> None:
    partition = replica(tmp_path, 0, LogConfig())
    disk = WatchedDisk()
    disk.inline_write_bytes = -1

    async def scenario(fetcher: ReplicaFetcher, accept: Callable[[], Awaitable[Leader]]) -> None:
        fetcher.add(partition, leader_epoch=EPOCH)
        leader = await accept()
        await leader.asked()
        await leader.answer(p0=ErrorCode.NONE, records=batch_of(b"one"))
        await leader.asked()

    following(scenario, disk=disk)
    assert disk.calls == 1
    assert partition.log.log_end_offset == 1


def test_a_large_row_ends_with_the_piece_in_which_its_leader_is_followed_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_state, "BESIDE_BYTES", 0)
    partition = replica(tmp_path, 0, LogConfig())
    fetchers: list[ReplicaFetcher] = []

    def started(call: int) -> None:
        if call == 2:
            fetchers[0].remove((TOPIC_ID, 0))
            fetchers[0].add(replica(tmp_path, 1), leader_epoch=EPOCH)

    async def scenario(fetcher: ReplicaFetcher, accept: Callable[[], Awaitable[Leader]]) -> None:
        fetchers.append(fetcher)
        fetcher.add(partition, leader_epoch=EPOCH)
        fetcher.add(replica(tmp_path, 2), leader_epoch=EPOCH)
        leader = await accept()
        await leader.asked()
        row = large_row(3 * PIECE_BATCHES)
        await leader.answer_rows([FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[row])])
        await leader.asked()

    following(scenario, disk=WatchedDisk(started))
    assert partition.log.log_end_offset == 2 * PIECE_BATCHES
    assert partition.high_watermark == 0


def test_a_large_row_fills_more_than_one_segment(tmp_path: Path) -> None:
    """The leader may have received it under a larger segment.bytes."""
    partition = replica(tmp_path, 0, LogConfig(segment_bytes=100_000))

    async def scenario(fetcher: ReplicaFetcher, accept: Callable[[], Awaitable[Leader]]) -> None:
        fetcher.add(partition, leader_epoch=EPOCH)
        leader = await accept()
        await leader.asked()
        row = large_row(PIECE_BATCHES)
        await leader.answer_rows([FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[row])])
        asked = await leader.asked()
        assert asked.topics[0].partitions[0].fetch_offset == PIECE_BATCHES

    following(scenario)
    assert partition.log.segment_count > 2


def test_a_damaged_batch_ends_a_large_row(tmp_path: Path) -> None:
    partition = replica(tmp_path, 0, LogConfig())
    row = large_row(2 * PIECE_BATCHES)
    assert isinstance(row.records, bytes)
    row.records = row.records[:-1] + b"\1"

    async def scenario(fetcher: ReplicaFetcher, accept: Callable[[], Awaitable[Leader]]) -> None:
        fetcher.add(partition, leader_epoch=EPOCH)
        leader = await accept()
        await leader.asked()
        await leader.answer_rows([FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[row])])
        while not (asked := await leader.asked()).topics:
            await leader.answer_rows([])
        assert asked.topics[0].partitions[0].fetch_offset == PIECE_BATCHES

    following(scenario)
    assert partition.log.log_end_offset == PIECE_BATCHES
    assert partition.high_watermark == 0
