"""Proposals of ISRs by one worker, for the partitions that it leads.

All due changes are proposed to the controller together, in one request at a time. A change of the
metadata ends a proposal, whether it contains the proposed ISR or another.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

import trio

from metaquorum.dataplane.partition.leader_state import Eligible, IsrChange
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication.isr_log import IsrLog
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.quorum.controller.leaders.alter_partition import PartitionChange
from metaquorum.quorum.rpc.controller_client import ControllerClient
from metaquorum.quorum.rpc.methods import ALTER_PARTITIONS, AlterPartitions
from metaquorum.runtime import Runtime, sleep
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

MAX_CHANGES: Final = 1000  # ISR changes in one request
FIRST_RETRY_S: Final = 0.05
MAX_RETRY_S: Final = 1.0
ASK_S: Final = 5.0
SLICE_PARTITIONS: Final = 500

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


class IsrProposals:
    def __init__(
        self,
        worker_id: int,
        broker_epoch: Callable[[], int],
        runtime: Runtime,
        loader: MetadataLoader,
        controller_client: ControllerClient,
        lag_s: float,
        is_eligible: Eligible,
    ) -> None:
        """Create the proposals of one worker; `run` sends them.

        `lag_s` is replica.lag.time.max.ms in seconds.
        """
        self._worker_id = worker_id
        self._broker_epoch = broker_epoch
        self._runtime = runtime
        self._loader = loader
        self._controller_client = controller_client
        self._lag_s = lag_s
        self._is_eligible = is_eligible
        # Led partitions with other replicas, and their ISR in the metadata.
        self._led: dict[Partition, tuple[int, ...]] = {}
        self._isr_log = IsrLog()
        self._due: dict[Partition, None] = {}
        self._is_due = trio.Event()

    def assigned(self, partition: Partition) -> None:
        """Apply a possible change of the partition's leader, replicas or ISR."""
        if partition.leader_state is not None:
            self._note_isr(partition, partition.leader_state.made)
            self.due(partition)
        else:
            self.removed(partition)

    def removed(self, partition: Partition) -> None:
        """Stop proposals for a partition that this worker does not lead, or no longer hosts."""
        self._led.pop(partition, None)
        self._due.pop(partition, None)

    def due(self, partition: Partition) -> None:
        """Let `run` propose an ISR of the partition if it should change."""
        self._due[partition] = None
        self._is_due.set()

    def log_changes(self) -> None:
        """Log the changes of ISRs since the last call."""
        self._isr_log.log_changes()

    async def workers_changed(self) -> None:
        """Let all led partitions apply a change of workers, which may join or leave ISRs."""
        for number, partition in enumerate(list(self._led)):
            partition.advance()
            partition.look_at_starts()
            partition.expect_joins()
            if number % SLICE_PARTITIONS == SLICE_PARTITIONS - 1:
                await trio.lowlevel.checkpoint()

    async def run(self) -> None:
        """Propose changes until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_for_lag)
            await self._propose_changes()

    def _note_isr(self, partition: Partition, own: IsrChange | None) -> None:
        before, state = self._led.get(partition), partition.state
        if before is not None and before != state.isr:
            self._isr_log.note(str(partition), before, state, own, self._loader.image)
        self._led[partition] = state.isr

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
                        self.due(partition)
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
                    self._worker_id,
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
                    partition.high_watermark, partition.log.log_end_offset, now, self._is_eligible
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
            self.due(partition)
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
