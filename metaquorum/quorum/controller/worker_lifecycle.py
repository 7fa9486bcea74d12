"""Lifecycle of workers: registration, unfencing, fencing, shutdown, drain, unregistration.

The part of the active controller that waits for workers. `heartbeats` keeps the session state that
is not in the metadata log and decides when a step is due; the rules are in `worker_registration`.
"""

import logging
from collections.abc import Sequence
from math import inf
from typing import Final

import trio

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.replicated_log import Quorum
from metaquorum.quorum.controller.change_summary import PartitionChangeSummary, log_summary
from metaquorum.quorum.controller.controller_configs import ControllerConfigs
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.heartbeats import (
    HeartbeatAnswer,
    SessionAction,
    WorkerHeartbeat,
    WorkerSessions,
    WorkerStatus,
)
from metaquorum.quorum.controller.proposer import Committed, Proposer
from metaquorum.quorum.controller.topics import check_epoch
from metaquorum.quorum.controller.worker_registration import (
    WorkerAction,
    WorkerRegistration,
    drain_worker,
    elect_leaders,
    fence_workers,
    register_worker,
    remove_worker,
    return_worker,
    shut_down_worker,
    unfence_worker,
    unregister_worker,
)
from metaquorum.runtime.interfaces import Clock
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

MAX_STEPS: Final = 4  # per heartbeat: at most SHUT_DOWN, FENCE, and changes by others in between
TRY_AGAIN_S: Final = 0.5  # pause after a failed maintenance run
STARTUP_REGISTRATION_CHECKS: Final = 75  # 1.5 s in total: grace period of a new term, and fencing
STARTUP_REGISTRATION_CHECK_S: Final = 0.02
STANDSTILL_S: Final = 0.2  # a timer this late means that this process itself was suspended


class WorkerLifecycle:
    """Worker lifecycle of one voter. If inactive, its async methods raise NOT_CONTROLLER."""

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
        self._wants_election = False  # a partition may have no leader although a replica may lead
        self._maintenance_due = trio.Event()

    def elect_soon(self) -> None:
        """Let `run_maintenance` elect leaders for partitions without one."""
        self._wants_election = True
        self._maintenance_due.set()

    async def register_worker(self, worker: WorkerRegistration) -> Committed[int]:
        """Register the worker, fenced until it is caught up, and return its broker epoch.

        Partitions that its previous process led get another leader or none. Raises KafkaError.
        """

        identity = worker.worker_id, worker.incarnation_id

        def decide(image: MetadataImage) -> Decision[PartitionChangeSummary]:
            is_held = self._sessions.is_held(*identity, self._clock.monotonic())
            committed = self._loader.image
            # An uncommitted registration is by another process, which is alive.
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
        log_summary(f"worker {worker.worker_id} has registered", changed.answer, quietly=True)
        self._follow()
        self._sessions.seen(*identity, self._clock.monotonic())
        known = self._loader.image.workers.get(worker.worker_id)
        if known is None or known.incarnation_id != worker.incarnation_id:
            raise KafkaError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"Another process registered as worker {worker.worker_id} at the same time.",
            )
        return Committed(known.broker_epoch, changed.end_offset)

    async def _wait_startup_registrations(self, worker_id: int) -> None:
        """Wait until it is known which other live workers have survived, at most 1.5 s."""
        for _ in range(STARTUP_REGISTRATION_CHECKS):
            self._follow()
            if not self._sessions.awaits_others(worker_id):
                return
            await self._clock.sleep_until(self._clock.monotonic() + STARTUP_REGISTRATION_CHECK_S)

    async def heartbeat(self, heartbeat: WorkerHeartbeat) -> HeartbeatAnswer:
        """Record a heartbeat, take the steps that it requires, and return the answer."""
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
        """Count a new connection of that process to this controller, active or not."""
        self._sessions.connected(worker_id, incarnation_id, self._clock.monotonic())

    def disconnected(self, worker_id: int, incarnation_id: bytes, *, is_evidence: bool) -> None:
        """Count an ended connection of that process to this controller.

        `is_evidence`: the process or its kernel closed it; not if it was silent, or this end did.
        """
        now = self._clock.monotonic()
        self._sessions.disconnected(worker_id, incarnation_id, now, is_evidence=is_evidence)
        self._maintenance_due.set()

    def peer_came(self, voter_id: int) -> None:
        """Note that the process of another voter, which may be a worker too, is connected."""
        self._sessions.peer_came(voter_id)

    def peer_closed(self, voter_id: int) -> None:
        """Note that the voter's process has closed its stream to this process, or has died."""
        self._sessions.peer_closed(voter_id, self._clock.monotonic())
        self._maintenance_due.set()

    async def unregister_worker(self, worker_id: int) -> Committed[None]:
        """Unregister the worker. Raises KafkaError, INVALID_REQUEST if it may be alive.

        A process that was only suspended registers again when it resumes.
        """

        def decide(image: MetadataImage) -> Decision[PartitionChangeSummary]:
            is_alive = self._may_be_alive(image, worker_id)
            return unregister_worker(image, worker_id, self._may_be_unclean, is_alive=is_alive)

        self._follow()
        changed = await self._proposer.change(decide)
        log_summary(f"worker {worker_id} is unregistered", changed.answer)
        return Committed(None, changed.end_offset)

    def _may_be_alive(self, image: MetadataImage, worker_id: int) -> bool:
        self._follow()
        committed = self._loader.image
        # An uncommitted registration is by a process that is alive.
        is_coming = image.broker_epoch(worker_id) != committed.broker_epoch(worker_id)
        return is_coming or self._sessions.may_be_alive(worker_id, self._clock.monotonic())

    async def alter_worker(self, worker_id: int, action: int) -> Committed[None]:
        """Drain, return or remove the worker, as an operator requests. Raises KafkaError.

        `action` is a `WorkerAction`, or an unknown number that a client sent.
        """
        self._follow()
        if action == WorkerAction.DRAIN:
            drained = await self._proposer.change(
                lambda image: drain_worker(image, worker_id, self._may_be_unclean)
            )
            log_summary(f"worker {worker_id} is draining", drained.answer)
            return Committed(None, drained.end_offset)
        if action == WorkerAction.RETURN:
            returned = await self._proposer.change(lambda image: return_worker(image, worker_id))
            logger.info("worker %d is no longer draining", worker_id)
            return returned
        if action == WorkerAction.REMOVE:
            removed = await self._proposer.change(
                lambda image: remove_worker(
                    image, worker_id, is_alive=self._may_be_alive(image, worker_id)
                )
            )
            logger.info("worker %d had no replica and is unregistered", worker_id)
            return removed
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Action {action} on worker {worker_id} does not exist."
        )

    async def worker_statuses(self) -> list[WorkerStatus]:
        """Return the session status of every worker."""
        await trio.lowlevel.checkpoint()
        self._follow()
        return list(self._sessions.statuses(self._clock.monotonic()))

    # Sessions

    def _follow(self) -> None:
        """Update the sessions to this term and the registered workers.

        Raises KafkaError (NOT_CONTROLLER) if this controller is not active.
        """
        status, image, now = self._quorum.status, self._loader.image, self._clock.monotonic()
        if not status.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "Not the active controller.")
        if status.term != self._sessions_term:
            self._sessions_term = status.term
            self._sessions.begin(image.workers, image.end_offset, now)
        else:
            self._sessions.follow(image.workers, image.end_offset, now)

    def _check(self, heartbeat: WorkerHeartbeat) -> None:
        """Update the sessions, and raise KafkaError if the broker epoch is not current."""
        self._follow()
        check_epoch(self._loader.image, heartbeat.worker_id, heartbeat.broker_epoch)

    async def _take(self, step: SessionAction, worker_id: int, broker_epoch: int) -> None:
        """Take the step, and wait until it is committed."""
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
            log_summary(f"worker {worker_id} is unfenced", changed.answer)
        elif step is SessionAction.SHUT_DOWN:
            changed = await self._proposer.change(
                lambda image: shut_down_worker(image, worker_id, broker_epoch, self._may_be_unclean)
            )
            log_summary(f"worker {worker_id} is in controlled shutdown", changed.answer)
        elif step is SessionAction.FENCE:
            await self._proposer.change(
                lambda image: fence_workers(image, {worker_id}, self._may_be_unclean)
            )
            logger.info("worker %d has completed its controlled shutdown", worker_id)

    async def run_maintenance(self) -> None:
        """Fence overdue workers and elect missing leaders, until cancelled."""
        self._wants_election = True
        while True:
            again = self._maintenance_due = trio.Event()
            try:
                await self._maintain_once()
                deadline = self._sessions.next_deadline()
            except KafkaError as error:
                logger.warning(
                    "cannot fence workers or elect leaders: %s; retrying in 500 ms", error.message
                )
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
        """Elect, then fence, each also if the other fails. Raises KafkaError if one has failed."""
        self._follow()
        try:
            if self._wants_election:
                await self._elect()
        finally:
            await self._fence_overdue()

    async def _elect(self) -> None:
        self._wants_election = False
        try:
            changed = await self._proposer.change(
                lambda image: elect_leaders(image, self._may_be_unclean)
            )
        except BaseException:
            self._wants_election = True
            raise
        log_summary("elected missing leaders", changed.answer, quietly=True)
        self._follow()

    async def _fence_overdue(self) -> None:
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
            log_summary(f"fenced {'one worker' if one else 'workers'}", summary, quietly=True)

    def _overdue(self) -> set[int]:
        return set(self._sessions.overdue(self._clock.monotonic()))
