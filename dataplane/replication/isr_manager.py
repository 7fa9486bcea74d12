"""Replication of one worker's partitions: ISR changes as leader, fetchers as follower.

    leader     followers fetch (`handlers.fetch`) -> `LeaderState` -> `isr_proposals`
    follower   `fetchers`: a `ReplicaFetcher` fetches partitions from one leader

The metadata decides the roles: `assigned` is called for each changed partition. Lost records and
logs are recorded in the truncation ledger, and reported to the controller.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

import trio

from metaquorum.config.resolution import Configs
from metaquorum.dataplane.fetch.session_client import FetchLimits, Key
from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
from metaquorum.dataplane.log.recovery.checkpoints import LogOffsets
from metaquorum.dataplane.network.listeners import ReplicationListener
from metaquorum.dataplane.partition.leader_state import UNKNOWN
from metaquorum.dataplane.partition.partition import Partition, ReplicaContext
from metaquorum.dataplane.quotas.replication_quota import ReplicationQuotas
from metaquorum.dataplane.replication import follower_state, truncation_ledger
from metaquorum.dataplane.replication.earlier_workers import EarlierFollowers, is_earlier
from metaquorum.dataplane.replication.fetchers import Fetchers
from metaquorum.dataplane.replication.follower_state import Truncation
from metaquorum.dataplane.replication.isr_proposals import IsrProposals
from metaquorum.dataplane.replication.replica_fetcher import (
    FetcherConfig,
    FollowerEvents,
    LeaderAddress,
)
from metaquorum.dataplane.replication.throttle import FollowerThrottle
from metaquorum.dataplane.replication.truncation_ledger import LostLog, TruncationLedger
from metaquorum.dataplane.replication.worker_client import WorkerClient
from metaquorum.metadata.image import (
    MetadataDelta,
    MetadataImage,
    PartitionImage,
)
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.quorum.channel import Endpoint
from metaquorum.quorum.rpc.controller_client import ControllerClient
from metaquorum.quorum.rpc.methods import (
    REPORT_DOUBTFUL_LOGS,
    REPORT_LOST_LOGS,
    ReportDoubtfulLogs,
    ReportLostLogs,
)
from metaquorum.quorum.rpc.session import WorkerSession
from metaquorum.runtime import Runtime, StorageError, sleep
from metaquorum.security.tls_context import ReloadedContext
from metaquorum.wire.primitives.errors import KafkaError
from metaquorum.wire.primitives.types import Uuid

log = logging.getLogger(__name__)

MAX_LOGS: Final = 1000  # logs in one report
FIRST_RETRY_S: Final = 0.05
MAX_RETRY_S: Final = 1.0
ASK_S: Final = 5.0
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
        lag_s = configs.integer("replica.lag.time.max.ms") / 1000
        self.fetchers: Final = Fetchers(
            self.worker_id,
            self._broker_epoch,
            runtime,
            FetcherConfig(
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
            ),
            configs.integer("num.replica.fetchers"),
            self._address,
            FollowerEvents(self._truncating, self._failed, self._cutting),
            endpoint,
        )
        self._proposals = IsrProposals(
            self.worker_id,
            self._broker_epoch,
            runtime,
            loader,
            controller_client,
            lag_s,
            self.is_eligible,
        )
        self.worker_client: Final = self.new_worker_client()
        self.context: Final = ReplicaContext(
            self.worker_id,
            self._broker_epoch,
            runtime.clock.monotonic,
            lag_s,
            self.is_eligible,
            {},
            self._proposals.due,
        )
        self.earlier_followers: Final = EarlierFollowers(
            runtime.network,
            between_workers.listener,
            runtime.clock.monotonic,
            lambda: loader.image,
        )
        self._lost: dict[Key, None] = {}  # failed logs not yet reported to the controller
        self._has_lost = trio.Event()
        self.log_dirs: LogDirs | None = None
        self.on_failure: Callable[[Partition, StorageError], None] | None = None
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

    def heard_from(self, replica_id: int) -> None:
        """Record the time of a fetch by this replica, of any partitions."""
        self.context.heard[replica_id] = self._runtime.clock.monotonic()

    def heard_at(self, replica_id: int) -> float:
        """Return the monotonic seconds of the last fetch by this replica; 0 without one."""
        return self.context.heard.get(replica_id, 0.0)

    def assigned(self, partition: Partition) -> None:
        """Apply a possible change of the partition's leader, replicas or ISR."""
        self.fetchers.assigned(partition)
        self._proposals.assigned(partition)

    def removed(self, partition: Partition) -> None:
        """Stop the replication of a partition that this worker no longer hosts or cannot use."""
        self.fetchers.removed(partition)
        self._proposals.removed(partition)

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
            part = left[:MAX_LOGS]
            try:
                answers = await report(part)
            except KafkaError as error:
                answers = [error] * len(part)
            if self._session.is_replaced:
                return False
            refused = [key for key, each in zip(part, answers, strict=True) if each is not None]
            left = refused + left[MAX_LOGS:]
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

    async def record_losses(self) -> None:
        """Record the losses of unclean elections, after the calls of `elected`."""
        if self._losses:
            losses, self._losses = self._losses, []
            await self.ledger.record(losses)

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Record unclean elections, log ISR changes and apply changes of workers.

        Called after the partitions were updated.
        """
        await self.record_losses()
        self._proposals.log_changes()
        if delta.worker_ids:
            self.fetchers.look_at_leaders()
            await self._proposals.workers_changed()

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
            nursery.start_soon(self.fetchers.run)
            nursery.start_soon(self._report_lost)
            try:
                await self._proposals.run()
            finally:
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
            lost = list(islice(self._lost, MAX_LOGS))
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
