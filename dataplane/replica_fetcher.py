"""Followers' tasks: each fetches from one leader all partitions that follow it.

    add ----> fetching --answer: records, where the logs part, nothing--> fetching
    remove <-'    |---- an error of the partition --> delayed --backoff--> fetching
                  '---- the connection ends, or the leader is another process: all begin anew

A fetcher has one request under way. What comes for a partition that was meanwhile taken away, or
given another leader epoch, is dropped.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

import trio

from dataplane import following
from dataplane.fetch_asking import (
    AskingSession,
    FetchLimits,
    Key,
    Wanted,
    is_session_error,
    rows_of,
)
from dataplane.following import Truncation
from dataplane.partition import Partition
from metaquorum.admin.connection import BrokerConnection
from metaquorum.admin.errors import NotServedError
from metaquorum.admin.seams import SeamTransport
from metaquorum.runtime import Runtime, StorageError
from wire.errors import ErrorCode, KafkaError, WireError
from wire.messages.fetch import EpochEndOffset, PartitionData
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

log = logging.getLogger(__name__)

FIRST_BACKOFF_S: Final = 0.02
EARLIEST: Final = -2
# An older version goes by names, not ids.
FETCH_VERSION: Final = 17
# An answer comes when its time to wait is over; whoever is silent for so much longer has gone.
SILENCE_S: Final = 10.0
# So long a leader whose process seems to be gone is not shown to clients, unless the metadata say
# more before: by then the controller has fenced it, or it is there.
SUSPECT_S: Final = 1.0
# A long poll is given up for the sake of partitions that it does not ask for, but not more often.
LEAST_POLL_S: Final = 0.1


class _OvertakenError(Exception):
    """The request under way does not ask for all that is to be fetched."""


class LeaderAddress(NamedTuple):
    host: str
    port: int
    broker_epoch: int  # which process that is


class FollowerEvents(NamedTuple):
    """Who is told what happens to partitions that follow."""

    # Before it is: once this returns, what is lost is written down.
    truncating: Callable[[Sequence[tuple[Partition, Truncation]]], Awaitable[None]]
    failed: Callable[[Partition, StorageError], None]


@dataclass(frozen=True, slots=True)
class FetcherConfig:
    limits: FetchLimits
    partition_max_bytes: int
    max_backoff_s: float


@dataclass(slots=True, eq=False)
class _Followed:
    partition: Partition
    leader_epoch: int
    resume_at: float = 0.0
    failures: int = 0
    told: ErrorCode | None = None  # the error that was logged last


class ReplicaFetcher:
    """Fetches from one leader. `run` in a task; `add` and `remove` at any time."""

    def __init__(
        self,
        replica_id: int,
        broker_epoch: int,
        leader_id: int,
        runtime: Runtime,
        config: FetcherConfig,
        address: Callable[[], LeaderAddress | None],
        events: FollowerEvents,
        draws: Random,
    ) -> None:
        """`address` is where the leader is by the metadata, if it is anywhere."""
        self.leader_id: Final = leader_id
        self._runtime = runtime
        self._config = config
        self._address = address
        self._events = events
        self._random = draws
        self._followed: dict[Key, _Followed] = {}
        self._session = AskingSession(replica_id, broker_epoch, config.limits)
        self._client_id = f"replica-{replica_id}"
        self._connected_to: LeaderAddress | None = None
        self._talking = trio.CancelScope()
        self._polling = trio.CancelScope()  # the wait for one answer
        self._polled_at = 0.0
        self._closed_at: float | None = None  # by the leader's side, and not opened again
        self._changed = trio.Event()

    @property
    def is_leader_suspect(self) -> bool:
        """The leader's process has closed the connection, or its kernel has, just now."""
        at = self._closed_at
        return at is not None and self._runtime.clock.monotonic() < at + SUSPECT_S

    def __len__(self) -> int:
        return len(self._followed)

    def add(self, partition: Partition, leader_epoch: int) -> None:
        """`partition` follows this leader in that epoch."""
        key = partition.topic_id, partition.index
        known = self._followed.get(key)
        if (
            known is not None
            and known.partition is partition
            and known.leader_epoch == leader_epoch
        ):
            return
        self._followed[key] = _Followed(partition, leader_epoch)
        self._changed.set()
        self._polling.deadline = min(self._polling.deadline, self._polled_at + LEAST_POLL_S)

    def remove(self, key: Key) -> None:
        """It does not any more; the answer under way does nothing to it."""
        if self._followed.pop(key, None) is not None and not self._followed:
            self._talking.cancel()

    def look_at_leader(self) -> None:
        """The metadata has changed: a leader that is another process is another connection."""
        address = self._address()
        if address is not None:
            if self._connected_to is not None and address != self._connected_to:
                self._talking.cancel()
            self._changed.set()

    async def run(self) -> None:
        failures = 0
        while True:
            while not self._followed or (address := self._address()) is None:
                await self._wait_changed()
            began = self._runtime.clock.monotonic()
            try:
                with trio.CancelScope() as self._talking:
                    await self._talk(address)
            except _OvertakenError:
                pass
            except (OSError, EOFError, WireError, NotServedError) as error:
                if self._closed_at is None and isinstance(error, EOFError | ConnectionError):
                    self._closed_at = self._runtime.clock.monotonic()
                if self._runtime.clock.monotonic() - began > self._config.max_backoff_s:
                    failures = 0
                if not failures:
                    log.info("fetching from worker %d broke off: %s", self.leader_id, error)
                failures += 1
                with trio.move_on_after(self._backoff_s(failures)):
                    await self._wait_changed()
            else:
                failures = 0
            finally:
                self._connected_to = None
                self._session.restart()

    async def _wait_changed(self) -> None:
        await self._changed.wait()
        self._changed = trio.Event()

    def _backoff_s(self, failures: int) -> float:
        most = min(FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 20), self._config.max_backoff_s)
        return most * self._random.uniform(0.5, 1.0)

    # One connection

    async def _talk(self, address: LeaderAddress) -> None:
        clock = self._runtime.clock
        transport = SeamTransport(clock, self._runtime.network)
        stream = await transport.connect(address.host, address.port, clock.monotonic() + SILENCE_S)
        connection = BrokerConnection(stream, address[:2], self._client_id)
        self._connected_to = address
        try:
            await connection.negotiate(clock.monotonic() + SILENCE_S)
            self._closed_at = None
            while True:
                await self._exchange(connection)
        finally:
            connection.close()

    async def _exchange(self, connection: BrokerConnection) -> None:
        """One request and all that follows from its answer."""
        clock = self._runtime.clock
        asked, delayed_until = self._due(clock.monotonic())
        if not asked:
            self._changed = trio.Event()
            with trio.move_on_at(trio.current_time() + max(0.0, delayed_until - clock.monotonic())):
                await self._changed.wait()
            return
        request = self._session.request({key: want for key, (_, want) in asked.items()})
        deadline = clock.monotonic() + self._config.limits.max_wait_ms / 1000 + SILENCE_S
        await connection.send(request, deadline, max_version=FETCH_VERSION)
        self._polled_at = trio.current_time()
        with trio.CancelScope() as self._polling:
            response = await connection.receive(deadline)
        if self._polling.cancelled_caught:
            raise _OvertakenError
        code = self._session.answered(response)
        if code:
            if not is_session_error(code):
                raise WireError(f"fetch is answered with {code.name}")
            return
        anew: list[tuple[Key, _Followed]] = []
        diverging: list[tuple[Key, _Followed, EpochEndOffset]] = []
        for key, row in rows_of(response):
            # Earlier rows have let others run, and this one may be followed no more.
            known = asked.get(key)
            if known is None or self._followed.get(key) is not known[0]:
                continue
            if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                anew.append((key, known[0]))
                continue
            if row.diverging_epoch is not None and not row.error_code:
                if known[1].fetch_offset == known[0].partition.log.log_end_offset:
                    diverging.append((key, known[0], row.diverging_epoch))
                continue
            await self._take(known[0], known[1], row)
        if diverging:
            await self._truncate(diverging)
        for key, followed in anew:
            await self._start_anew(connection, key, followed)

    def _due(self, now: float) -> tuple[dict[Key, tuple[_Followed, Wanted]], float]:
        """What is to be asked for now; and when the first of the delayed is to be."""
        asked: dict[Key, tuple[_Followed, Wanted]] = {}
        next_at = float("inf")
        for key, followed in self._followed.items():
            if followed.resume_at > now:
                next_at = min(next_at, followed.resume_at)
                continue
            want = following.wanted(
                followed.partition, followed.leader_epoch, self._config.partition_max_bytes
            )
            asked[key] = followed, want
        return asked, next_at

    async def _take(self, followed: _Followed, want: Wanted, row: PartitionData) -> None:
        partition = followed.partition
        if row.error_code:
            self._delay(followed, ErrorCode(row.error_code))
            return
        if want.fetch_offset != partition.log.log_end_offset:
            return
        try:
            await self._append(followed, row)
        except KafkaError as error:
            log.error("from worker %d: %s", self.leader_id, error.message)
            self._delay(followed, error.code)
        except StorageError as error:
            self._events.failed(partition, error)
            self._delay(followed, ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            followed.failures, followed.told = 0, None

    async def _append(self, followed: _Followed, row: PartitionData) -> None:
        partition = followed.partition
        records = row.records
        assert isinstance(records, bytes | memoryview | None)
        if records:
            following.append(partition, records, self._runtime.clock.now_ms())
            plog = partition.log
            if plog.config.flush_messages <= plog.unflushed_records:
                await plog.flush(self._runtime.disk)
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()
            if self._followed.get((partition.topic_id, partition.index)) is not followed:
                return
        following.follow(partition, row.high_watermark, row.log_start_offset)

    async def _truncate(self, diverging: list[tuple[Key, _Followed, EpochEndOffset]]) -> None:
        """They have lost what the leader has not, after it was written down that they do."""
        cuts = [
            (
                key,
                followed,
                following.diverging_cut(followed.partition, followed.leader_epoch, where),
            )
            for key, followed, where in diverging
        ]
        await self._events.truncating([(followed.partition, cut) for _, followed, cut in cuts])
        for key, followed, cut in cuts:
            if self._followed.get(key) is not followed:
                continue  # it has another leader now
            try:
                following.truncate(followed.partition, cut)
            except StorageError as error:
                self._events.failed(followed.partition, error)
                self._delay(followed, ErrorCode.KAFKA_STORAGE_ERROR)
            else:
                followed.failures, followed.told = 0, None

    def _delay(self, followed: _Followed, code: ErrorCode) -> None:
        followed.failures += 1
        now = self._runtime.clock.monotonic()
        followed.resume_at = now + self._backoff_s(followed.failures)
        if followed.told is not code and followed.failures > 1:
            followed.told = code
            log.info(
                "%s cannot be fetched from worker %d: %s",
                followed.partition,
                self.leader_id,
                code.name,
            )

    async def _start_anew(
        self, connection: BrokerConnection, key: Key, followed: _Followed
    ) -> None:
        """Our log has no offset in common with the leader's, and begins where that one does."""
        partition = followed.partition
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=partition.topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=partition.index,
                            current_leader_epoch=followed.leader_epoch,
                            timestamp=EARLIEST,
                        )
                    ],
                )
            ],
        )
        deadline = self._runtime.clock.monotonic() + SILENCE_S
        await connection.send(request, deadline)
        response = await connection.receive(deadline)
        row = response.topics[0].partitions[0]
        if self._followed.get(key) is not followed:
            return
        if row.error_code:
            self._delay(followed, ErrorCode(row.error_code))
        elif row.offset <= partition.log.log_end_offset:
            # It ends before ours does, or begins before: to be told by epochs.
            self._delay(followed, ErrorCode.OFFSET_OUT_OF_RANGE)
        else:
            cut = following.whole_cut(partition, followed.leader_epoch)
            if cut.offset < cut.end_offset:
                await self._events.truncating([(partition, cut)])
            if self._followed.get(key) is not followed:
                return
            try:
                following.start_anew(partition, row.offset)
            except StorageError as error:
                self._events.failed(partition, error)
                self._delay(followed, ErrorCode.KAFKA_STORAGE_ERROR)

    def partitions(self) -> Iterator[Partition]:
        for followed in list(self._followed.values()):
            yield followed.partition
