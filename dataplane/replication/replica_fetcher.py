"""Replica fetchers: each fetches from one leader the partitions that `isr_manager` assigns to it.

`followed_partitions` decides which partitions to fetch and from which offsets. The fetcher sends
the requests, then appends the records or truncates the logs. It has one request pending at a time.
A row of the response is dropped if its partition was removed or has a new leader epoch since.

Nearly all responses have a few small batches: the step that receives them (`_step`) appends them
and sends the next request. Rows that must wait, and all rows of a large response, are left to the
task (`_take_rest`), which sends the next request afterwards.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from math import ceil, inf
from random import Random
from typing import Final, NamedTuple

import trio

from metaquorum.client.connection import BrokerConnection
from metaquorum.client.errors import BrokerError, NotServedError
from metaquorum.client.security import Login
from metaquorum.client.trio_transport import TrioStream, TrioTransport
from metaquorum.dataplane.fetch.session_client import (
    FetchLimits,
    FetchSessionClient,
    Key,
    RequestedPartition,
    is_session_error,
    rows_of,
)
from metaquorum.dataplane.log.recovery.checkpoints import LogOffsets
from metaquorum.dataplane.log.segments.config import NEVER
from metaquorum.dataplane.partition.leader_state import BrokerEpoch
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication import follower_state
from metaquorum.dataplane.replication.followed_partitions import Followed, FollowedPartitions
from metaquorum.dataplane.replication.follower_state import Truncation
from metaquorum.dataplane.replication.leader_connection import LeaderConnection
from metaquorum.dataplane.replication.leader_handshake import (
    exchange_hellos,
    take_proof,
    verifies_proofs,
)
from metaquorum.dataplane.replication.throttle import FollowerThrottle, may_throttle
from metaquorum.quorum.channel import Endpoint, HandshakeError
from metaquorum.quorum.channel.handshake import DialerHandshake
from metaquorum.runtime import Runtime, StorageError
from metaquorum.security.tls_context import ReloadedContext
from metaquorum.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData
from metaquorum.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError, WireError
from metaquorum.wire.primitives.frozen import frozen

log = logging.getLogger(__name__)

# Leader and follower learn of a topic or an election at different times: thousands of partitions
# fail then, most of them briefly.
MOST_PASSING: Final = 10  # failures, with growing backoff, that are not logged
_PASSING: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
)

FIRST_BACKOFF_S: Final = 0.02
EARLIEST: Final = -2
# Highest version in use; versions before 13 identify topics by name instead of id.
FETCH_VERSION: Final = 17
# Seconds beyond the max wait time after which a leader that does not answer is disconnected.
SILENCE_S: Final = 10.0
# Seconds for which clients are not directed to a leader that has closed its connection: by then
# the controller has fenced it, or it is back.
SUSPECT_S: Final = 1.0
# Max wait time while consumers wait for a follower's high watermark, which only a fetch updates.
HURRIED_WAIT_MS: Final = 10
# Least seconds between two long polls that are abandoned because partitions were added meanwhile.
OVERTAKEN_EVERY_S: Final = 0.1
# Other tasks run after each partition of a larger response.
IN_PLACE_BYTES: Final = 256 * 1024
# More bytes of one partition are appended in pieces, after each of which other tasks run.
ONE_PIECE_BYTES: Final = 128 * 1024
# Batches of a piece; each costs some 10 us.
PIECE_BATCHES: Final = 250
# Logs that are truncated and flushed concurrently.
CONCURRENT_CUTS: Final = 8


# Errors that end a connection to a leader; the fetcher reconnects after a backoff.
_ENDS: Final = (OSError, EOFError, WireError, NotServedError, BrokerError, HandshakeError)


class _OvertakenError(Exception):
    """Raised if the pending request does not cover all partitions to fetch."""


class LeaderAddress(NamedTuple):
    host: str
    port: int
    broker_epoch: int  # identifies the leader's process
    is_earlier: bool = False  # may be of a version without proofs; see `earlier_workers`


class FollowerEvents(NamedTuple):
    """Callbacks for truncations and failures of followed partitions."""

    # Awaited before a truncation; records it in the truncation ledger.
    truncating: Callable[[Sequence[tuple[Partition, Truncation]]], Awaitable[None]]
    failed: Callable[[Partition, StorageError], None]
    # Held during a truncation: limits the checkpoints on disk to the offsets that remain. Yields
    # the partitions that must not be truncated, because their checkpoints could not be written.
    cutting: Callable[
        [Mapping[Partition, LogOffsets]],
        AbstractAsyncContextManager[Mapping[Partition, StorageError]],
    ]


@frozen
class FetcherConfig:
    limits: FetchLimits
    partition_max_bytes: int
    max_backoff_s: float
    login: Login | None = None  # this worker's credentials, if the leader authenticates clients
    tls: ReloadedContext | None = None
    throttle: FollowerThrottle | None = None  # None: no replica is throttled
    kept_bytes: int = 0  # size up to which a connection keeps its receive buffer


class _Row(NamedTuple):
    """Row of a fetch response, with the parameters of its fetch."""

    key: Key
    followed: Followed
    want: RequestedPartition
    row: PartitionData


class ReplicaFetcher:
    """Fetcher from one leader: `run` it in a task, `add` and `remove` partitions at any time."""

    def __init__(
        self,
        replica_id: int,
        broker_epoch: BrokerEpoch,
        leader_id: int,
        runtime: Runtime,
        config: FetcherConfig,
        address: Callable[[], LeaderAddress | None],
        events: FollowerEvents,
        endpoint: Endpoint | None,
        draws: Random,
    ) -> None:
        """Create a fetcher; `address` returns the leader's address in the metadata, if any.

        `endpoint` authenticates this worker to the leader. Without a cluster secret it is None, and
        the fetcher fails to connect.
        """
        self.leader_id: Final = leader_id
        self._runtime = runtime
        self._config = config
        self._address = address
        self._events = events
        self._endpoint = endpoint
        self._random = draws
        self._session = FetchSessionClient(replica_id, broker_epoch, config.limits)
        self._throttle: Final = config.throttle
        self._followed = FollowedPartitions(
            self._session, config.partition_max_bytes, config.throttle, draws
        )
        self._client_id = f"replica-{replica_id}"
        self._connected_to: LeaderAddress | None = None
        self._talking = trio.CancelScope()
        self._polling = trio.CancelScope()  # the wait for responses
        self._overtaken_at = -inf  # when a long poll was last abandoned
        self._is_overtaken = False  # the pending request does not cover all partitions
        self._rest: list[_Row] = []  # rows left to the task
        self._stale_count = 0  # consecutive STALE_BROKER_EPOCH responses
        self._stale_until = -inf  # no fetch is sent before
        self._closed_at: float | None = None  # when the leader closed the connection; None: open
        self._stream: TrioStream | None = None  # to the leader, after the exchange of hellos
        self._changed = trio.Event()

    @property
    def is_leader_suspect(self) -> bool:
        """Whether the leader's side closed the connection less than SUSPECT_S ago."""
        at = self._closed_at
        return at is not None and self._runtime.clock.monotonic() < at + SUSPECT_S

    def look_for_end(self) -> None:
        """Note that the leader closed the connection, even if the task has not received that yet.

        A client that lost its connection to the same process may ask for the next leader first.
        """
        stream = self._stream
        if self._closed_at is None and stream is not None and stream.connection.is_ended():
            self._closed_at = self._runtime.clock.monotonic()

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def max_lag(self) -> int:
        return max((followed.lag for followed in self._followed), default=0)

    @property
    def sum_of_lags(self) -> int:
        return sum(followed.lag for followed in self._followed)

    def add(self, partition: Partition, leader_epoch: int) -> None:
        """Follow this leader for `partition` in that leader epoch."""
        if not self._followed.add(partition, leader_epoch):
            return
        self._changed.set()
        self._is_overtaken = True
        due_at = max(trio.current_time(), self._overtaken_at + OVERTAKEN_EVERY_S)
        self._polling.deadline = min(self._polling.deadline, due_at)

    def remove(self, key: Key) -> None:
        """Stop following the partition; the pending response does not change it."""
        if self._followed.remove(key) and not self._followed:
            self._talking.cancel()

    def look_at_leader(self) -> None:
        """Reconnect if the metadata has a new address or broker epoch of the leader."""
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
            except _ENDS as error:
                if self._closed_at is None and isinstance(error, EOFError | ConnectionError):
                    self._closed_at = self._runtime.clock.monotonic()
                if self._runtime.clock.monotonic() - began > self._config.max_backoff_s:
                    failures = 0
                if not failures:
                    log.info(
                        "the connection for fetching from worker %d ended: %s; reconnecting",
                        self.leader_id,
                        error,
                    )
                failures += 1
                with trio.move_on_after(self._backoff_s(failures)):
                    await self._wait_changed()
            else:
                failures = 0
            finally:
                self._connected_to = None
                self._restart_session()

    async def _wait_changed(self) -> None:
        await self._changed.wait()
        self._changed = trio.Event()

    def _backoff_s(self, failures: int) -> float:
        most = min(FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 20), self._config.max_backoff_s)
        return most * self._random.uniform(0.5, 1.0)

    # Connection

    async def _talk(self, address: LeaderAddress) -> None:
        clock = self._runtime.clock
        tls = self._config.tls
        context = None if tls is None else tls.current
        transport = TrioTransport(clock, self._runtime.network, context)
        stream = await transport.connect(address.host, address.port, clock.monotonic() + SILENCE_S)
        connection = BrokerConnection(
            stream,
            address[:2],
            self._client_id,
            self._config.login,
            clock.monotonic,
            self._runtime.random,
        )
        self._connected_to = address
        try:
            deadline = clock.monotonic() + SILENCE_S
            dialing: DialerHandshake | None = None
            if not address.is_earlier or await verifies_proofs(connection, deadline):
                dialing = await exchange_hellos(
                    connection, self._endpoint, self.leader_id, address[:2], deadline
                )
            self._closed_at, self._stream = None, stream
            version = connection.version_of(FetchRequest, max_version=FETCH_VERSION)
            link = LeaderConnection(
                stream.connection, version, self._client_id, kept_bytes=self._config.kept_bytes
            )
            if dialing is not None:
                link.prove_nowait(dialing.data_to_send(), partial(take_proof, dialing))
            else:
                log.info(
                    "fetching from worker %d without a proof: it runs an earlier version",
                    self.leader_id,
                )
            self._polling = trio.CancelScope()
            while True:
                await self._exchange(link)
                await self._take_rest(connection)
        finally:
            self._stream = None
            connection.close()

    async def _exchange(self, link: LeaderConnection) -> None:
        """Send fetches and handle their responses until there is work for the task."""
        if not link.is_asked:
            self._ask(link)
        if not link.is_asked:
            await self._wait_due()
            return
        with self._polling:
            await link.pump(lambda: self._step(link))
        if self._polling.cancelled_caught:
            if self._is_overtaken:
                self._overtaken_at = trio.current_time()
                raise _OvertakenError
            raise TimeoutError("the leader does not respond")
        self._polling = trio.CancelScope(deadline=self._polling.deadline)

    def _step(self, link: LeaderConnection) -> bool:
        """Handle a response if one has arrived; return False if the task must continue."""
        received = link.answer_nowait()
        if received is None:
            return True
        response, size_bytes = received
        code = self._session.answered(response)
        if code is ErrorCode.STALE_BROKER_EPOCH:
            # This worker and its leader learn of a registration at different times.
            self._restart_session()
            self._stale_count += 1
            if self._stale_count == MOST_PASSING:
                log.info(
                    "leader %d rejects fetches with STALE_BROKER_EPOCH; retrying", self.leader_id
                )
            pause_s = self._backoff_s(self._stale_count)
            self._stale_until = self._runtime.clock.monotonic() + pause_s
        elif code:
            if not is_session_error(code):
                raise WireError(f"the fetch response has the error {code.name}")
            self._restart_session()
        else:
            self._stale_count = 0
            most_bytes = min(IN_PLACE_BYTES, self._runtime.disk.inline_write_bytes)
            self._take(response, in_place=size_bytes <= most_bytes)
        if not self._rest:
            self._ask(link)
        return link.is_asked and link.is_sent

    def _ask(self, link: LeaderConnection) -> None:
        """Send a fetch request, unless there is nothing to fetch now."""
        now = self._runtime.clock.monotonic()
        self._followed.look(now)
        if not len(self._session) or now < self._stale_until:
            return
        link.ask_nowait(self._session.request(self._wait_ms(now)))
        silent_at = trio.current_time() + self._config.limits.max_wait_ms / 1000 + SILENCE_S
        # Not moved for each of thousands of requests a second: trio sorts deadlines.
        if self._is_overtaken or not 0 <= self._polling.deadline - silent_at <= SILENCE_S:
            self._polling.deadline = silent_at + SILENCE_S
        self._is_overtaken = False

    def _wait_ms(self, now: float) -> int:
        """Return the max wait time of the next fetch in milliseconds."""
        wait_ms = self._config.limits.max_wait_ms
        if self._followed.are_awaited:
            wait_ms = min(wait_ms, HURRIED_WAIT_MS)
        next_at = self._followed.next_resume_at()
        if next_at < inf:  # delayed partitions are fetched only after this response
            wait_ms = min(wait_ms, max(1, ceil((next_at - now) * 1000)))
        return wait_ms

    async def _wait_due(self) -> None:
        """Wait until there is something to fetch."""
        now = self._runtime.clock.monotonic()
        next_at = self._followed.next_resume_at()
        if now < self._stale_until:
            next_at = self._stale_until
        self._changed = trio.Event()
        with trio.move_on_after(max(0.0, next_at - now)):
            await self._changed.wait()

    def _restart_session(self) -> None:
        self._session.restart()
        self._followed.mark_all_changed()

    # Fetch responses

    def _take(self, response: FetchResponse, *, in_place: bool) -> None:
        """Handle the rows that need no wait; leave the others to the task."""
        for key, row in rows_of(response):
            followed = self._followed.get(key)
            if followed is None or followed.want is None:
                continue
            self._followed.mark_changed(key)
            if may_throttle(followed.partition):
                self._count_throttled(followed.partition, row)
            if (
                not in_place
                or row.error_code
                or row.diverging_epoch is not None
                or followed.partition.log.config.flush_messages != NEVER
                or _begins_within(followed.partition, row) is not None
                or not _matches(followed, followed.want, row)
            ):
                self._rest.append(_Row(key, followed, followed.want, row))
            else:
                each = _Row(key, followed, followed.want, row)
                if self._append(each):
                    self._follow(each)

    def _count_throttled(self, partition: Partition, row: PartitionData) -> None:
        if self._throttle is not None and row.records:
            assert isinstance(row.records, bytes | memoryview)
            now = self._runtime.clock.monotonic()
            self._throttle.record(partition, len(row.records), now)

    async def _take_rest(self, connection: BrokerConnection) -> None:
        rows, self._rest = self._rest, []
        anew: list[_Row] = []
        diverging: list[_Row] = []
        for each in rows:
            # Other tasks run while earlier rows wait, and may have removed the partition.
            if not self._is_followed(each):
                continue
            code = each.row.error_code
            if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                anew.append(each)
            elif code:
                self._delay(each.followed, ErrorCode(code))
            elif each.row.diverging_epoch is not None:
                if each.want.fetch_offset == each.followed.partition.log.log_end_offset:
                    diverging.append(each)
            elif not _matches(each.followed, each.want, each.row):
                if each.want.fetch_offset == each.followed.partition.log.log_end_offset:
                    await self._truncate_fully(each.key, each.followed, each.row.log_start_offset)
            else:
                await self._append_and_flush(each)
        if diverging:
            await self._truncate(diverging)
        for each in anew:
            await self._start_anew(connection, each.key, each.followed)

    def _is_followed(self, each: _Row) -> bool:
        return self._followed.get(each.key) is each.followed

    def _append(self, each: _Row, start: int | None = None) -> bool:
        """Append the row's records; return whether the row's offsets may be applied.

        `start` is the new start of an emptied log, if it was moved for these records.
        """
        partition, records = each.followed.partition, each.row.records
        expected = each.want.fetch_offset if start is None else start
        if expected != partition.log.log_end_offset:
            return False
        assert isinstance(records, bytes | memoryview | None)
        try:
            if records:
                follower_state.append(partition, records, self._runtime.clock.now_ms())
        except (KafkaError, StorageError) as error:
            self._append_failed(each, error)
            return False
        return True

    async def _append_pieces(self, each: _Row, start: int | None) -> bool:
        """Append as `_append` does, in pieces."""
        followed = each.followed
        partition = followed.partition
        assert isinstance(each.row.records, bytes | memoryview)
        rest = memoryview(each.row.records)
        expected = each.want.fetch_offset if start is None else start
        appending = partition.appending
        while True:
            # Held by no other task while this worker follows; a new leadership waits for it. Other
            # tasks have a turn between pieces, and after the row.
            if len(rest) == len(each.row.records) and not appending.locked():
                appending.acquire_nowait()
            else:
                await appending.acquire()
            try:
                if not self._is_followed(each) or expected != partition.log.log_end_offset:
                    return False
                size_bytes = await follower_state.append_piece(
                    partition, self._runtime.disk, rest, self._runtime.clock.now_ms(), PIECE_BATCHES
                )
                expected = partition.log.log_end_offset
            except (KafkaError, StorageError) as error:
                self._append_failed(each, error)
                return False
            finally:
                appending.release()
            rest = rest[size_bytes:]
            if not size_bytes or not rest:
                return self._is_followed(each)

    def _append_failed(self, each: _Row, error: KafkaError | StorageError) -> None:
        if isinstance(error, StorageError):
            self._failed(each.followed, error)
            return
        if each.followed.logged_error is not error.code:
            each.followed.logged_error = error.code
            log.error(
                "cannot append records fetched from worker %d: %s; retrying with backoff",
                self.leader_id,
                error.message,
            )
        self._delay(each.followed)

    async def _append_and_flush(self, each: _Row) -> None:
        partition = each.followed.partition
        start = _begins_within(partition, each.row)
        if start is not None and not await self._begin_anew(each.key, each.followed, start):
            return
        records = each.row.records
        assert isinstance(records, bytes | memoryview | None)
        if records and len(records) > min(ONE_PIECE_BYTES, self._runtime.disk.inline_write_bytes):
            if not await self._append_pieces(each, start):
                return
        elif not self._append(each, start):
            return
        try:
            plog = partition.log
            if plog.config.flush_messages <= plog.unflushed_records:
                await partition.flush(self._runtime.disk)
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()
        except StorageError as error:
            self._failed(each.followed, error)
        else:
            if self._is_followed(each):
                self._follow(each)

    def _follow(self, each: _Row) -> None:
        """Apply the leader's high watermark and log start offset, which completes the row."""
        followed, row = each.followed, each.row
        try:
            follower_state.follow(followed.partition, row.high_watermark, row.log_start_offset)
        except StorageError as error:
            self._failed(followed, error)
        else:
            followed.failures, followed.logged_error = 0, None
            followed.lag = max(0, row.high_watermark - followed.partition.log.log_end_offset)
            followed.is_caught_up = not followed.lag

    def _failed(self, followed: Followed, error: StorageError) -> None:
        self._events.failed(followed.partition, error)
        self._delay(followed)

    async def _truncate(self, diverging: list[_Row]) -> None:
        """Record the truncations in the ledger, then truncate the diverging logs."""
        pairs: list[tuple[_Row, Truncation]] = []
        for each in diverging:
            partition, where = each.followed.partition, each.row.diverging_epoch
            assert where is not None
            try:
                cut = follower_state.diverging_cut(partition, each.followed.leader_epoch, where)
            except StorageError as error:
                self._failed(each.followed, error)
            else:
                pairs.append((each, cut))
        await self._events.truncating([(each.followed.partition, cut) for each, cut in pairs])
        kept: dict[Partition, LogOffsets] = {}
        for each, cut in pairs:
            partition = each.followed.partition
            try:
                kept[partition] = follower_state.offsets_after(partition, cut)
            except StorageError as error:
                self._failed(each.followed, error)
        left = iter([(each, cut) for each, cut in pairs if each.followed.partition in kept])

        async def cut_all() -> None:
            for each, cut in left:
                partition = each.followed.partition
                made = partial(follower_state.truncate, partition, cut, kept[partition])
                if await self._cut(each.key, each.followed, uncut, made):
                    each.followed.failures, each.followed.logged_error = 0, None

        async with self._events.cutting(kept) as uncut, trio.open_nursery() as nursery:
            for _ in range(CONCURRENT_CUTS):
                nursery.start_soon(cut_all)

    async def _cut(
        self,
        key: Key,
        followed: Followed,
        uncut: Mapping[Partition, StorageError],
        cut: Callable[[], bool],
    ) -> bool:
        """Call `cut` and flush the log; return False if the log was not truncated or flushed.

        The caller holds `cutting`. Appends wait meanwhile, as this worker may become leader.
        """
        partition = followed.partition
        async with partition.appending:
            if self._followed.get(key) is not followed:
                return False  # the partition has another leader now
            try:
                if (failure := uncut.get(partition)) is not None:
                    raise failure
                if not cut():
                    return False
                with trio.CancelScope(shield=True):
                    await partition.flush(self._runtime.disk)
            except StorageError as error:
                self._failed(followed, error)
                return False
        return True

    async def _begin_anew(self, key: Key, followed: Followed, offset: int) -> bool:
        """Empty the log and start it at `offset`; return False if not emptied or not flushed."""
        partition = followed.partition
        kept = partition.log.offsets_after_full_truncation(offset)
        async with self._events.cutting({partition: kept}) as uncut:
            made = partial(follower_state.start_anew, partition, offset)
            return await self._cut(key, followed, uncut, made)

    def _delay(self, followed: Followed, code: ErrorCode | None = None) -> None:
        """Fetch the partition again after a backoff. `code`: the error of its leader, to be logged.

        Without it this worker has failed, which is logged already.
        """
        followed.failures += 1
        now = self._runtime.clock.monotonic()
        self._followed.delay(followed, now + self._backoff_s(followed.failures))
        if code is None:
            return
        most = MOST_PASSING if code in _PASSING else 1
        if followed.logged_error is not code and followed.failures > most:
            followed.logged_error = code
            log.info(
                "cannot fetch partition %s from worker %d: %s; retrying with backoff",
                followed.partition,
                self.leader_id,
                code.name,
            )

    async def _start_anew(self, connection: BrokerConnection, key: Key, followed: Followed) -> None:
        """Start the log at the leader's log start offset, if the logs have no offset in common.

        An empty log that ends after the leader's has no epoch to compare either: retention or
        DeleteRecords removed its records, then a replica with a shorter log was elected uncleanly.
        Such a log loses no records.
        """
        partition = followed.partition
        plog = partition.log
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
        elif row.offset <= plog.log_end_offset and plog.log_start_offset < plog.log_end_offset:
            # The leader's log starts within this one: the next fetch compares epochs.
            self._delay(followed, ErrorCode.OFFSET_OUT_OF_RANGE)
        else:
            await self._truncate_fully(key, followed, row.offset)

    async def _truncate_fully(self, key: Key, followed: Followed, offset: int) -> None:
        """Record the truncation in the ledger, then empty the log like `_begin_anew`."""
        partition = followed.partition
        cut = follower_state.full_truncation(partition, followed.leader_epoch)
        if cut.offset < cut.end_offset:
            await self._events.truncating([(partition, cut)])
        if self._followed.get(key) is followed:
            await self._begin_anew(key, followed, offset)

    def partitions(self) -> Iterator[Partition]:
        for followed in list(self._followed):
            yield followed.partition


def _matches(followed: Followed, want: RequestedPartition, row: PartitionData) -> bool:
    """Return whether the leader has compared this log's last record, or the log is empty.

    The row has no error and no diverging epoch.
    """
    if not followed.is_matched:
        followed.is_matched = not follower_state.ends_at_leaders_start(want, row.log_start_offset)
    return followed.is_matched


def _begins_within(partition: Partition, row: PartitionData) -> int | None:
    records = row.records
    assert isinstance(records, bytes | memoryview | None)
    return follower_state.begins_within(partition, records) if records else None
