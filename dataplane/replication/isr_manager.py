"""Replication of one worker's partitions: ISR changes as leader, fetchers as follower.

    leader     followers fetch (`handlers.fetch`) -> `LeaderState` -> ISR changes are proposed to
               the controller, batched, one request at a time
    follower   num.replica.fetchers `ReplicaFetcher`s for each leader, and as many for its
               partitions in which this replica is not in sync

The metadata decides the roles: `assigned` is called for each changed partition.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from random import Random
from typing import Final, TypeAlias
from zlib import crc32

import trio

from metaquorum.config.resolution import Configs
from metaquorum.dataplane.fetch.session_client import FetchLimits, Key
from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
from metaquorum.dataplane.log.recovery.checkpoints import LogOffsets
from metaquorum.dataplane.network.listeners import ReplicationListener
from metaquorum.dataplane.partition.leader_state import UNKNOWN, IsrChange
from metaquorum.dataplane.partition.partition import Partition, ReplicaContext
from metaquorum.dataplane.quotas.replication_quota import ReplicationQuotas
from metaquorum.dataplane.replication import follower_state, truncation_ledger
from metaquorum.dataplane.replication.earlier_workers import EarlierFollowers, is_earlier
from metaquorum.dataplane.replication.follower_state import Truncation
from metaquorum.dataplane.replication.isr_log import IsrLog
from metaquorum.dataplane.replication.replica_fetcher import (
    FetcherConfig,
    FollowerEvents,
    LeaderAddress,
    ReplicaFetcher,
)
from metaquorum.dataplane.replication.throttle import FollowerThrottle
from metaquorum.dataplane.replication.truncation_ledger import LostLog, TruncationLedger
from metaquorum.dataplane.replication.worker_client import WorkerClient
from metaquorum.metadata.image import (
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.quorum.channel import Endpoint
from metaquorum.quorum.controller.leaders.alter_partition import PartitionChange
from metaquorum.quorum.rpc.controller_client import ControllerClient
from metaquorum.quorum.rpc.methods import (
    ALTER_PARTITIONS,
    REPORT_DOUBTFUL_LOGS,
    REPORT_LOST_LOGS,
    AlterPartitions,
    ReportDoubtfulLogs,
    ReportLostLogs,
)
from metaquorum.quorum.rpc.session import WorkerSession
from metaquorum.runtime import Runtime, StorageError, sleep
from metaquorum.security.tls_context import ReloadedContext
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.types import Uuid

log = logging.getLogger(__name__)

MAX_CHANGES: Final = 1000  # ISR changes in one request
FIRST_RETRY_S: Final = 0.05
MAX_RETRY_S: Final = 1.0
ASK_S: Final = 5.0
SLICE_PARTITIONS: Final = 500
# A fetcher of replicas that catch up keeps its receive buffer, up to the limit of a response and
# this number of bytes: for fields that are not records, and a first batch that exceeds the limit.
SPARE_BYTES: Final = 2 << 20

# Errors that a retry of the same proposal cannot change: the leader may propose another ISR.
_REFUSED: Final = frozenset((ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST))
# Results after which a metadata change of the partition arrives and ends the proposal.
_OVERTAKEN: Final = frozenset(
    (
        ErrorCode.NONE,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.NEW_LEADER_ELECTED,
    )
)


_Report: TypeAlias = Callable[[Sequence[Key]], Awaitable[list[KafkaError | None]]]


class IsrManager:
    """Replication of all partitions of one worker."""

    def __init__(
        self,
        session: WorkerSession,
        runtime: Runtime,
        loader: MetadataLoader,
        configs: Configs,
        between_workers: ReplicationListener,
        tls: ReloadedContext | None,
        endpoint: Endpoint | None,
        controller_client: ControllerClient,
        ledger: TruncationLedger,
    ) -> None:
        """Create the manager of one worker; `run` starts its fetchers.

        `between_workers` is the listener for connections to other workers, over `tls` if given.
        The broker epoch is read from `session` at each use, because it may change. `endpoint`
        authenticates this worker to other workers; None in a single-node cluster.
        """
        self._between_workers = between_workers
        self._endpoint = endpoint
        self._tls = tls
        self.worker_id: Final = session.registration.worker_id
        self.ledger: Final = ledger
        self._session: Final = session
        self._runtime = runtime
        self._loader = loader
        self._controller_client = controller_client
        self.quotas: Final = ReplicationQuotas(configs, runtime.clock.monotonic)
        self._lag_s = configs.integer("replica.lag.time.max.ms") / 1000
        self._fetchers_per_leader = configs.integer("num.replica.fetchers")
        self._fetcher_config = FetcherConfig(
            FetchLimits(
                configs.integer("replica.fetch.wait.max.ms"),
                configs.integer("replica.fetch.min.bytes"),
                configs.integer("replica.fetch.response.max.bytes"),
            ),
            configs.integer("replica.fetch.max.bytes"),
            configs.integer("replica.fetch.backoff.ms") / 1000,
            between_workers.login,
            tls,
            FollowerThrottle(self.quotas.follower),
        )
        self.worker_client: Final = self.new_worker_client()
        self._catch_up_config = replace(
            self._fetcher_config,
            kept_bytes=self._fetcher_config.limits.max_bytes + SPARE_BYTES,
        )
        self.context: Final = ReplicaContext(
            self.worker_id,
            self._broker_epoch,
            runtime.clock.monotonic,
            self._lag_s,
            self.is_eligible,
            {},
            self._isr_due,
        )
        self.earlier_followers: Final = EarlierFollowers(
            runtime.network,
            between_workers.listener,
            runtime.clock.monotonic,
            lambda: loader.image,
        )
        self._events = FollowerEvents(self._truncating, self._failed, self._cutting)
        self._fetchers: dict[tuple[int, int], tuple[ReplicaFetcher, trio.CancelScope]] = {}
        self._stopped: dict[int, ReplicaFetcher] = {}  # the last one of each leader without one
        self._fetched_by: dict[Key, tuple[int, int]] = {}
        # Led partitions with other replicas, and their ISR in the metadata.
        self._led: dict[Partition, tuple[int, ...]] = {}
        self._isr_log = IsrLog()
        self._due: dict[Partition, None] = {}
        self._is_due = trio.Event()
        self._lost: dict[Key, None] = {}  # failed logs not yet reported to the controller
        self._has_lost = trio.Event()
        self.log_dirs: LogDirs | None = None
        self.on_failure: Callable[[Partition, StorageError], None] | None = None
        self._nursery: trio.Nursery | None = None
        self._losses: list[truncation_ledger.Entry] = []  # unclean elections to record

    def new_worker_client(self) -> WorkerClient:
        """Return a client with connections of its own, on which no request of others waits."""
        return WorkerClient(
            self.worker_id,
            self._runtime,
            self._address_of,
            self._endpoint,
            self._between_workers.login,
            self._tls,
        )

    def _broker_epoch(self) -> int:
        return self._session.broker_epoch

    # Changes in the metadata

    def is_eligible(self, replica_id: int, broker_epoch: int) -> bool:
        """Return whether a worker with this broker epoch may be in an ISR (KIP-841, KIP-903)."""
        image = self._loader.image
        return image.is_live(replica_id) and (
            broker_epoch in (UNKNOWN, image.workers[replica_id].broker_epoch)
        )

    def suspects(self) -> frozenset[int]:
        """Return the leaders that have just closed a connection: their process may have ended.

        A leader stays suspect after its partitions here have got another leader: responses name
        that leader later, when all parts of this worker have applied the metadata.
        """
        stopped = self._stopped.values()
        return frozenset(
            fetcher.leader_id
            for fetcher in (*(each for each, _ in self._fetchers.values()), *stopped)
            if fetcher.is_leader_suspect
        )

    def look_for_ended_leaders(self, topics: Sequence[TopicImage]) -> None:
        """Let `suspects` include leaders of `topics` whose connections have just ended.

        Each look at a connection is a system call, so other leaders are left out; except for more
        partitions than there are connections, as looking for their leaders would take longer.
        """
        if sum([len(topic.partitions) for topic in topics]) >= len(self._fetchers):
            for fetcher, _ in self._fetchers.values():
                fetcher.look_for_end()
            return
        for leader_id in {partition.leader for topic in topics for partition in topic.partitions}:
            for number in range(2 * self._fetchers_per_leader):
                if (known := self._fetchers.get((leader_id, number))) is not None:
                    known[0].look_for_end()

    def heard_from(self, replica_id: int) -> None:
        """Record the time of a fetch by this replica, of any partitions."""
        self.context.heard[replica_id] = self._runtime.clock.monotonic()

    def heard_at(self, replica_id: int) -> float:
        """Return the monotonic seconds of the last fetch by this replica; 0 without one."""
        return self.context.heard.get(replica_id, 0.0)

    def assigned(self, partition: Partition) -> None:
        """Apply a possible change of the partition's leader, replicas or ISR."""
        key = partition.topic_id, partition.index
        followed = partition.leader_id if partition.is_follower else None
        fetcher_at = None if followed is None else (followed, self._number(partition))
        self._stop_fetching(key, unless=fetcher_at)
        if fetcher_at is not None:
            self._fetched_by[key] = fetcher_at
            self._fetcher(fetcher_at).add(partition, partition.leader_epoch)
        if partition.leader_state is not None:
            self._note_isr(partition, partition.leader_state.made)
            self._isr_due(partition)
        else:
            self._led.pop(partition, None)
            self._due.pop(partition, None)

    def _note_isr(self, partition: Partition, own: IsrChange | None) -> None:
        before, state = self._led.get(partition), partition.state
        if before is not None and before != state.isr:
            self._isr_log.note(str(partition), before, state, own, self._loader.image)
        self._led[partition] = state.isr

    def removed(self, partition: Partition) -> None:
        """Stop the replication of a partition that this worker no longer hosts or cannot use."""
        self._stop_fetching((partition.topic_id, partition.index), unless=None)
        self._led.pop(partition, None)
        self._due.pop(partition, None)

    def lost(self, topic_id: Uuid, index: int) -> None:
        """Schedule the report to the controller that the partition's log cannot be used."""
        self._lost[topic_id, index] = None
        self._has_lost.set()

    async def report_recreated(self, logs: Sequence[Key]) -> bool:
        """Report to the controller that these logs were recreated empty; retry without limit.

        Returns False if another process has registered as this worker meanwhile.
        """
        return await self._report_all(logs, partial(self._report, recreated=True), "recreated")

    async def report_doubtful(self, logs: Sequence[Key]) -> bool:
        """Report to the controller that the ends of these logs may be lost; retry without limit.

        Returns False if another process has registered as this worker meanwhile.
        """
        return await self._report_all(logs, self._report_doubtful, "doubtful")

    async def _report_all(self, logs: Sequence[Key], report: _Report, which: str) -> bool:
        failures = 0
        left = list(logs)
        while left:
            part = left[:MAX_CHANGES]
            try:
                answers = await report(part)
            except KafkaError as error:
                answers = [error] * len(part)
            if self._session.is_replaced:
                return False
            refused = [key for key, each in zip(part, answers, strict=True) if each is not None]
            left = refused + left[MAX_CHANGES:]
            failures = failures + 1 if refused else 0
            if failures:
                log.log(
                    logging.WARNING if failures == 1 else logging.DEBUG,
                    "cannot report the %s logs to the controller: %s; retrying",
                    which,
                    next(each.message for each in answers if each is not None),
                )
                retry_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures, 10))
                await sleep(self._runtime.clock, retry_s)
        return True

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Record unclean elections, log ISR changes and apply changes of workers.

        Called after the partitions were updated.
        """
        if self._losses:
            losses, self._losses = self._losses, []
            await self.ledger.record(losses)
        self._isr_log.log_changes()
        if delta.worker_ids:
            for fetcher, _ in list(self._fetchers.values()):
                fetcher.look_at_leader()
            for number, partition in enumerate(list(self._led)):
                partition.advance()
                partition.look_at_starts()
                partition.expect_joins()
                if number % SLICE_PARTITIONS == SLICE_PARTITIONS - 1:
                    await trio.lowlevel.checkpoint()

    def _number(self, partition: Partition) -> int:
        """Return the number of the leader's fetcher for the partition.

        Replicas out of sync have fetchers of their own: their large responses would delay the
        in-sync ones, for which producers wait (with 2 GB to catch up, acks=all took 30 ms instead
        of 2 ms).
        """
        number = crc32(partition.topic_id, partition.index) % self._fetchers_per_leader
        is_in_sync = self.worker_id in partition.isr
        return number if is_in_sync else number + self._fetchers_per_leader

    def _stop_fetching(self, key: Key, *, unless: tuple[int, int] | None) -> None:
        at = self._fetched_by.get(key)
        if at is None or at == unless:
            return
        del self._fetched_by[key]
        fetcher, scope = self._fetchers[at]
        fetcher.remove(key)
        if not len(fetcher):
            del self._fetchers[at]
            self._stopped[at[0]] = fetcher
            scope.cancel()

    def max_lag(self) -> int:
        """Return the largest number of committed records that a follower here has not fetched."""
        return max((fetcher.max_lag for fetcher, _ in self._fetchers.values()), default=0)

    def sum_of_lags(self) -> int:
        """Return the committed records that the followers here have not fetched, in all."""
        return sum(fetcher.sum_of_lags for fetcher, _ in self._fetchers.values())

    def _fetcher(self, at: tuple[int, int]) -> ReplicaFetcher:
        known = self._fetchers.get(at)
        if known is not None:
            return known[0]
        leader_id, number = at
        self._stopped.pop(leader_id, None)
        fetcher = ReplicaFetcher(
            self.worker_id,
            self._broker_epoch,
            leader_id,
            self._runtime,
            self._fetcher_config if number < self._fetchers_per_leader else self._catch_up_config,
            lambda: self._address(leader_id),
            self._events,
            self._endpoint,
            Random(self._runtime.random.getrandbits(64)),  # noqa: S311 - for jitter
        )
        scope = trio.CancelScope()
        self._fetchers[at] = fetcher, scope
        if self._nursery is not None:
            self._nursery.start_soon(self._run_fetcher, fetcher, scope)
        return fetcher

    async def _run_fetcher(self, fetcher: ReplicaFetcher, scope: trio.CancelScope) -> None:
        with scope:
            await fetcher.run()

    def _address(self, leader_id: int) -> LeaderAddress | None:
        image = self._loader.image
        worker = image.workers.get(leader_id)
        for endpoint in () if worker is None else worker.endpoints:
            if worker is not None and endpoint.listener == self._between_workers.listener:
                return LeaderAddress(
                    endpoint.host,
                    endpoint.port,
                    worker.broker_epoch,
                    is_earlier=is_earlier(image, worker),
                )
        return None

    def _address_of(self, worker_id: int) -> tuple[str, int] | None:
        address = self._address(worker_id)
        return None if address is None else address[:2]

    async def _truncating(self, cuts: Sequence[tuple[Partition, Truncation]]) -> None:
        now_ms = self._runtime.clock.now_ms()
        await self.ledger.record(
            [truncation_ledger.of_follower(each, cut, now_ms) for each, cut in cuts]
        )

    @asynccontextmanager
    async def _cutting(
        self, kept: Mapping[Partition, LogOffsets]
    ) -> AsyncIterator[Mapping[Partition, StorageError]]:
        assert self.log_dirs is not None
        at = {(each.topic, each.index): each for each in kept}
        async with self.log_dirs.cutting({key: kept[each] for key, each in at.items()}) as uncut:
            yield {at[key]: error for key, error in uncut.items()}

    def elected(self, partition: Partition, before: PartitionImage, high_watermark: int) -> None:
        """Schedule a ledger entry for lost records if this worker was elected leader uncleanly.

        `high_watermark` is the one before the election: as the only ISR member, the new leader
        commits its whole log. The unclean election may have been in an earlier epoch that this
        worker did not see or record; this worker is then still the only ISR member.
        """
        state = partition.state
        if state.unclean_epoch < 0:
            return
        if state.leader_epoch > state.unclean_epoch and (
            state.isr != (self.worker_id,)
            or follower_state.last_epoch(partition) >= state.unclean_epoch
            or self.ledger.knows_election(partition)
        ):
            return
        now_ms = self._runtime.clock.now_ms()
        self._losses.append(
            truncation_ledger.of_unclean_leader(partition, before, high_watermark, now_ms)
        )

    async def lost_logs(self, lost: Sequence[LostLog]) -> None:
        """Add ledger entries for logs that were recreated empty, or are about to be."""
        now_ms = self._runtime.clock.now_ms()
        await self.ledger.record([truncation_ledger.of_lost_log(each, now_ms) for each in lost])

    async def recovered(self, partitions: Sequence[Partition]) -> None:
        """Add ledger entries for records that these logs lost in recovery."""
        now_ms = self._runtime.clock.now_ms()
        found = [
            truncation_ledger.of_recovery(partition, now_ms, self.ledger.last_of)
            for partition in partitions
        ]
        await self.ledger.record([entry for entry in found if entry is not None])

    def _failed(self, partition: Partition, error: StorageError) -> None:
        assert self.on_failure is not None
        self.on_failure(partition, error)

    # Running

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for fetcher, scope in self._fetchers.values():
                nursery.start_soon(self._run_fetcher, fetcher, scope)
            nursery.start_soon(self._look_for_lag)
            nursery.start_soon(self._report_lost)
            self._nursery = nursery
            try:
                await self._propose_changes()
            finally:
                self._nursery = None  # partitions assigned during the shutdown are not fetched
                self.worker_client.close()

    async def _report(self, logs: Sequence[Key], *, recreated: bool) -> list[KafkaError | None]:
        """Report lost logs; return for each log its error, or None if the report is committed.

        Raises KafkaError if the request as a whole fails.
        """
        request = ReportLostLogs(self.worker_id, self._broker_epoch(), logs, recreated)
        return (
            await self._controller_client.ask(REPORT_LOST_LOGS, request, timeout_s=ASK_S)
        ).answer

    async def _report_doubtful(self, logs: Sequence[Key]) -> list[KafkaError | None]:
        """Report doubtful logs; answers and errors are those of `_report`."""
        request = ReportDoubtfulLogs(self.worker_id, self._broker_epoch(), logs)
        return (
            await self._controller_client.ask(REPORT_DOUBTFUL_LOGS, request, timeout_s=ASK_S)
        ).answer

    async def _report_lost(self) -> None:
        """Report lost logs to the controller until cancelled."""
        failures = 0
        while True:
            await self._has_lost.wait()
            self._has_lost = trio.Event()
            lost = list(islice(self._lost, MAX_CHANGES))
            if not lost:
                continue
            try:
                answers = await self._report(lost, recreated=False)
            except KafkaError as error:
                answers = [error] * len(lost)
            for key, answer in zip(lost, answers, strict=True):
                if answer is None:
                    del self._lost[key]
            if not self._lost:
                failures = 0
                continue
            self._has_lost.set()
            refused = next((each for each in answers if each is not None), None)
            if refused is not None:
                failures += 1
                if failures == 1:
                    log.warning(
                        "cannot report lost logs to the controller: %s; retrying", refused.message
                    )
                retry_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures, 10))
                await sleep(self._runtime.clock, retry_s)

    def _isr_due(self, partition: Partition) -> None:
        self._due[partition] = None
        self._is_due.set()

    async def _look_for_lag(self) -> None:
        """Propose to remove lagging replicas from ISRs, until cancelled."""
        while True:
            await sleep(self._runtime.clock, self._lag_s / 2)
            now = self._runtime.clock.monotonic()
            for number, partition in enumerate(list(self._led)):
                leadership = partition.leader_state
                if leadership is not None:
                    partition.advance()
                    if leadership.lagging(partition.log.log_end_offset, now):
                        self._isr_due(partition)
                if number % SLICE_PARTITIONS == SLICE_PARTITIONS - 1:
                    await trio.lowlevel.checkpoint()

    async def _propose_changes(self) -> None:
        """Send due ISR proposals to the controller until cancelled."""
        failures = 0
        while True:
            await self._is_due.wait()
            self._is_due = trio.Event()
            changes = self._changes_due()
            if not changes:
                continue
            try:
                request = AlterPartitions(
                    self.worker_id,
                    self._broker_epoch(),
                    [_row(partition, change) for partition, change in changes],
                )
                committed = await self._controller_client.ask(
                    ALTER_PARTITIONS, request, timeout_s=ASK_S
                )
            except KafkaError as error:
                failures += 1
                if failures == 1:
                    log.warning(
                        "cannot propose ISR changes to the controller: %s; retrying", error.message
                    )
                self._settle(changes, [error.code] * len(changes), lost=True)
            else:
                failures = 0
                self._settle(changes, committed.answer, lost=False)
            if any(partition in self._due for partition, _ in changes):
                retry_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures, 10))
                await sleep(self._runtime.clock, retry_s * self._runtime.random.uniform(0.5, 1.0))

    def _changes_due(self) -> list[tuple[Partition, IsrChange]]:
        now = self._runtime.clock.monotonic()
        changes: list[tuple[Partition, IsrChange]] = []
        while self._due and len(changes) < MAX_CHANGES:
            partition = next(iter(self._due))
            del self._due[partition]
            leadership = partition.leader_state
            if leadership is None or partition.offline is not None:
                continue
            change = leadership.proposed  # sent before with unknown outcome
            if change is None:
                change = leadership.propose(
                    partition.high_watermark, partition.log.log_end_offset, now, self.is_eligible
                )
            if change is not None:
                changes.append((partition, change))
        if self._due:
            self._is_due.set()
        return changes

    def _settle(
        self,
        changes: Sequence[tuple[Partition, IsrChange]],
        codes: Sequence[ErrorCode],
        *,
        lost: bool,
    ) -> None:
        refused: list[tuple[Partition, ErrorCode]] = []
        for (partition, change), code in zip(changes, codes, strict=True):
            leadership = partition.leader_state
            if leadership is None or leadership.proposed is not change:
                continue  # a metadata change came before the response
            if not lost and code in _OVERTAKEN:
                continue
            if lost or code not in _REFUSED:
                leadership.lost(change)
            else:
                leadership.refused(change)
                refused.append((partition, code))
            self._isr_due(partition)
        if refused:
            partition, code = refused[0]
            others = f", and {len(refused) - 1} more" if len(refused) > 1 else ""
            log.info(
                "the controller refused the proposed ISR of %s: %s%s", partition, code.name, others
            )


def _row(partition: Partition, change: IsrChange) -> PartitionChange:
    return PartitionChange(
        partition.topic_id,
        partition.index,
        change.leader_epoch,
        change.partition_epoch,
        change.isr,
        change.broker_epochs,
    )
