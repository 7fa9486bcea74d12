"""Who is in the cluster, and who may lead: workers register, are live, fenced, and go.

The active controller's part that waits for workers. What it knows of them beside the log is in
`worker_sessions`, which also says when a step is due; the rules are in `registrations`.
"""

import logging
from collections.abc import Sequence
from math import inf
from typing import Final

import trio

from metaquorum.controller.change_summary import PartitionChangeSummary, log_summary
from metaquorum.controller.controller_configs import ControllerConfigs
from metaquorum.controller.decision import Decision
from metaquorum.controller.heartbeats import (
    HeartbeatAnswer,
    SessionAction,
    WorkerHeartbeat,
    WorkerSessions,
    WorkerStatus,
)
from metaquorum.controller.proposer import Committed, Proposer
from metaquorum.controller.topics import check_epoch
from metaquorum.controller.worker_registration import (
    WorkerRegistration,
    elect_leaders,
    fence_workers,
    register_worker,
    shut_down_worker,
    unfence_worker,
    unregister_worker,
)
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.replicated_log import Quorum
from metaquorum.runtime.interfaces import Clock
from wire.primitives.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

MAX_STEPS: Final = 4  # of one heartbeat: at most SHUT_DOWN, FENCE, and what others did between
TRY_AGAIN_S: Final = 0.5  # after a change of the controller's own that failed
STARTUP_REGISTRATION_CHECKS: Final = 75  # for 1.5 s in all: a new term's grace, and the fencing
STARTUP_REGISTRATION_CHECK_S: Final = 0.02
STANDSTILL_S: Final = 0.2  # by which this process is late, before it blames itself


class WorkerLifecycle:
    """Every voter has one; on one that is not active, what waits raises NOT_CONTROLLER."""

    def __init__(
        self,
        quorum: Quorum,
        loader: MetadataLoader,
        proposer: Proposer,
        clock: Clock,
        configs: ControllerConfigs,
    ) -> None:
        self._quorum = quorum
        self._loader = loader
        self._proposer = proposer
        self._clock = clock
        self._may_be_unclean = configs.may_be_unclean
        timeout_ms = configs.of(loader.image).integer("broker.session.timeout.ms")
        self._sessions = WorkerSessions(timeout_ms / 1000)
        self._sessions_term = -1
        self._wants_election = False  # a worker came, and not all that it may lead was given it
        self._maintenance_due = trio.Event()

    def elect_soon(self) -> None:
        """`run_maintenance` looks for partitions that somebody may lead now."""
        self._wants_election = True
        self._maintenance_due.set()

    async def register_worker(self, worker: WorkerRegistration) -> Committed[int]:
        """The worker is registered, and fenced until it is caught up; its broker epoch.

        What it led is led by others, or by none.
        """

        identity = worker.worker_id, worker.incarnation_id

        def decide(image: MetadataImage) -> Decision[PartitionChangeSummary]:
            is_held = self._sessions.is_held(*identity, self._clock.monotonic())
            committed = self._loader.image
            # One that is not committed yet is another process's, and that is alive.
            is_coming = image.broker_epoch(identity[0]) != committed.broker_epoch(identity[0])
            return register_worker(
                image,
                worker,
                is_held=is_held or is_coming,
                may_be_unclean=self._may_be_unclean,
            )

        self._follow()
        self._sessions.seen(*identity, self._clock.monotonic())
        known = self._loader.image.workers.get(worker.worker_id)
        if known is None or known.incarnation_id != worker.incarnation_id:
            await self._wait_startup_registrations(worker.worker_id)
        self._follow()
        changed = await self._proposer.change(decide)
        log_summary(f"worker {worker.worker_id} is another process", changed.answer, quietly=True)
        self._follow()
        self._sessions.seen(*identity, self._clock.monotonic())
        known = self._loader.image.workers.get(worker.worker_id)
        if known is None or known.incarnation_id != worker.incarnation_id:
            raise KafkaError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"Another process registered as worker {worker.worker_id} meanwhile.",
            )
        return Committed(known.broker_epoch, changed.end_offset)

    async def _wait_startup_registrations(self, worker_id: int) -> None:
        """It is known who of the others has survived the last reign, or long enough was waited."""
        for _ in range(STARTUP_REGISTRATION_CHECKS):
            self._follow()
            if not self._sessions.awaits_others(worker_id):
                return
            await self._clock.sleep_until(self._clock.monotonic() + STARTUP_REGISTRATION_CHECK_S)

    async def heartbeat(self, heartbeat: WorkerHeartbeat) -> HeartbeatAnswer:
        """The worker's session goes on; what the controller makes of it."""
        await trio.lowlevel.checkpoint()
        self._check(heartbeat)
        self._sessions.heard(heartbeat, self._clock.monotonic())
        for _ in range(MAX_STEPS):
            if (step := self._sessions.step(heartbeat)) is SessionAction.NONE:
                break
            await self._take(step, heartbeat.worker_id, heartbeat.broker_epoch)
            self._check(heartbeat)
        return self._sessions.answer(heartbeat, self._loader.image.end_offset)

    def connected(self, worker_id: int, incarnation_id: bytes) -> None:
        """That process has one more connection to this controller, active or not."""
        self._sessions.connected(worker_id, incarnation_id, self._clock.monotonic())

    def disconnected(self, worker_id: int, incarnation_id: bytes) -> None:
        """That process has one connection less to this controller."""
        self._sessions.disconnected(worker_id, incarnation_id, self._clock.monotonic())
        self._maintenance_due.set()

    def peer_came(self, voter_id: int) -> None:
        """The process of another voter, which may be a worker, too, is there."""
        self._sessions.peer_came(voter_id)

    def peer_closed(self, voter_id: int) -> None:
        """Its process has closed its stream to this one, or is no more."""
        self._sessions.peer_closed(voter_id, self._clock.monotonic())
        self._maintenance_due.set()

    async def unregister_worker(self, worker_id: int) -> Committed[None]:
        """The worker is not registered any more. KafkaError; INVALID_REQUEST: it may be alive.

        A process that was only paused registers anew when it is resumed.
        """

        def decide(image: MetadataImage) -> Decision[PartitionChangeSummary]:
            self._follow()
            committed = self._loader.image
            # One that is not committed yet is of a process that is alive.
            is_coming = image.broker_epoch(worker_id) != committed.broker_epoch(worker_id)
            is_alive = self._sessions.may_be_alive(worker_id, self._clock.monotonic())
            return unregister_worker(
                image, worker_id, self._may_be_unclean, is_alive=is_alive or is_coming
            )

        self._follow()
        changed = await self._proposer.change(decide)
        log_summary(f"worker {worker_id} is unregistered", changed.answer)
        return Committed(None, changed.end_offset)

    async def worker_statuses(self) -> list[WorkerStatus]:
        """What is known of every worker beside its registration."""
        await trio.lowlevel.checkpoint()
        self._follow()
        return list(self._sessions.statuses(self._clock.monotonic()))

    # Sessions

    def _follow(self) -> None:
        """Sessions are of this term, and of the workers that are registered. KafkaError."""
        status, image, now = self._quorum.status, self._loader.image, self._clock.monotonic()
        if not status.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "Not the active controller.")
        if status.term != self._sessions_term:
            self._sessions_term = status.term
            self._sessions.begin(image.workers, image.end_offset, now)
        else:
            self._sessions.follow(image.workers, image.end_offset, now)

    def _check(self, heartbeat: WorkerHeartbeat) -> None:
        """Sessions are as they should be, and it is the worker's current registration."""
        self._follow()
        check_epoch(self._loader.image, heartbeat.worker_id, heartbeat.broker_epoch)

    async def _take(self, step: SessionAction, worker_id: int, broker_epoch: int) -> None:
        """The step is taken, and committed."""
        if step is SessionAction.UNFENCE:
            try:
                changed = await self._proposer.change(
                    lambda image: unfence_worker(
                        image, worker_id, broker_epoch, self._may_be_unclean
                    )
                )
            except KafkaError:
                self._wants_election = True
                raise
            finally:
                self._maintenance_due.set()
            log_summary(f"worker {worker_id} is live", changed.answer)
        elif step is SessionAction.SHUT_DOWN:
            changed = await self._proposer.change(
                lambda image: shut_down_worker(image, worker_id, broker_epoch, self._may_be_unclean)
            )
            log_summary(
                f"worker {worker_id} shuts down, and leads nothing any more", changed.answer
            )
        elif step is SessionAction.FENCE:
            await self._proposer.change(
                lambda image: fence_workers(image, {worker_id}, self._may_be_unclean)
            )
            logger.info("worker %d has shut down", worker_id)

    async def run_maintenance(self) -> None:
        """Overdue workers are fenced, and what can be led is; until cancelled."""
        self._wants_election = True
        while True:
            again = self._maintenance_due = trio.Event()
            try:
                await self._maintain_once()
                deadline = self._sessions.next_deadline()
            except KafkaError as error:
                logger.warning("the controller cannot tend its workers: %s", error.message)
                deadline = self._clock.monotonic() + TRY_AGAIN_S
            async with trio.open_nursery() as nursery:
                if deadline < inf:
                    nursery.start_soon(self._wake_at, deadline)
                await again.wait()
                nursery.cancel_scope.cancel()

    async def _wake_at(self, deadline: float) -> None:
        await self._clock.sleep_until(deadline)
        late = self._clock.monotonic() - deadline
        if late > STANDSTILL_S:
            self._sessions.postpone(late)
        self._maintenance_due.set()

    async def _maintain_once(self) -> None:
        self._follow()
        if self._wants_election:
            self._wants_election = False
            try:
                changed = await self._proposer.change(
                    lambda image: elect_leaders(image, self._may_be_unclean)
                )
            except BaseException:
                self._wants_election = True
                raise
            log_summary("leaders were looked for", changed.answer, quietly=True)
            self._follow()
        if overdue := self._overdue():
            changed = await self._proposer.change(
                lambda image: fence_workers(image, overdue & self._overdue(), self._may_be_unclean)
            )
            self._follow()
            self._log_fenced(sorted(overdue & self._loader.image.fenced_workers()), changed.answer)

    def _log_fenced(self, worker_ids: Sequence[int], summary: PartitionChangeSummary) -> None:
        for worker_id in worker_ids:
            why = self._sessions.why_fenced(worker_id)
            logger.warning("worker %d is fenced: %s", worker_id, why)
        if worker_ids:
            one = len(worker_ids) == 1
            log_summary(f"without {'it' if one else 'them'}", summary, quietly=True)

    def _overdue(self) -> set[int]:
        return set(self._sessions.overdue(self._clock.monotonic()))
