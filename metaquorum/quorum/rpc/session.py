"""Session of a worker with the active controller: registration, heartbeats, controlled shutdown.

    starting --registered--> fenced --caught up--> unfenced --shut_down--> controlled shutdown
                                ^                     |                            |
                                '---fenced again------'               may stop --> stopped

A registration lasts as long as the process; every active controller reads it from the log. The
worker also registers with each new active controller, which changes nothing but shows that the
worker is alive. If the worker was unregistered meanwhile (it was paused, and its session had
expired), it receives a new broker epoch and is fenced until it has caught up; nothing is restarted.
The worker sends heartbeats at a fixed interval, and immediately if a fenced worker has applied more
metadata, the worker begins a controlled shutdown, or another controller has become active.

While no controller is active, the worker remains leader of its partitions, since no other leader
can be elected. The session logs the beginning and the end of that time once each.

Source: KIP-631; Kafka's BrokerLifecycleManager.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.quorum.channel.rpc_client import CallError
from metaquorum.quorum.channel.timing import Backoff, within
from metaquorum.quorum.controller.heartbeats import HeartbeatAnswer, WorkerHeartbeat
from metaquorum.quorum.controller.worker_registration import WorkerRegistration
from metaquorum.quorum.rpc.links import ControllerTerm, QuorumLinks
from metaquorum.quorum.rpc.methods import HEARTBEAT, REGISTER_WORKER
from metaquorum.runtime.interfaces import Runtime, StorageError, sleep
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

CALL_S: Final = 5.0
RETRY_LEAST_S: Final = 0.02
RETRY_MOST_S: Final = 1.0
TELL_S: Final = 3.0  # interval of log lines while the worker waits for its registration
DISCONNECTED_LOG_S: Final = 1.0  # shorter times without an active controller are not logged
FORSAKEN_S: Final = 2.0  # time without an active controller after which a shutdown stops waiting
# Least interval between two heartbeats.
LEAST_HEARTBEAT_S: Final = 0.02
# Interval during controlled shutdown: whether the worker may stop depends on other workers.
LEAVING_HEARTBEAT_S: Final = 0.05
_UNREGISTERED: Final = frozenset((ErrorCode.BROKER_ID_NOT_REGISTERED, ErrorCode.STALE_BROKER_EPOCH))


class ReplacedError(StorageError):
    """Raised if another process has registered with the id of this worker."""


class RefusedError(StorageError):
    """Raised if the active controller refuses to register this worker."""


class IdentityGuard:
    """First publisher of the loader; stops a worker whose id another process has taken over."""

    def __init__(self, registration: WorkerRegistration) -> None:
        self._registration = registration

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Raise ReplacedError if the metadata names another process as this worker."""
        if _names_another(image, self._registration):
            raise ReplacedError(
                f"another process has registered as worker {self._registration.worker_id}; this"
                " process stops; configure a different node id for each process"
            )


def _names_another(image: MetadataImage, registration: WorkerRegistration) -> bool:
    known = image.workers.get(registration.worker_id)
    return known is not None and known.incarnation_id != registration.incarnation_id


class WorkerSession:
    """Session of one worker process: `register`, then `run` in a task, `shut_down` at the end."""

    def __init__(
        self,
        runtime: Runtime,
        links: QuorumLinks,
        loader: MetadataLoader,
        registration: WorkerRegistration,
        heartbeat_s: float,
        offline_log_dirs: Callable[[], tuple[bytes, ...]] = lambda: (),
        granted: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Create a session; it calls `granted` with each new broker epoch before using the epoch.

        `heartbeat_s` is the interval of heartbeats in seconds.
        """
        self.registration: Final = registration
        self.guard: Final = IdentityGuard(registration)
        # The broker epoch granted last, even if the metadata applied here does not contain that
        # registration yet. Readers do not keep copies: this attribute is its only owner.
        self.broker_epoch = -1
        self.is_fenced = True
        self._clock = runtime.clock
        self._random = runtime.random
        self._links = links
        self._loader = loader
        self._heartbeat_s = heartbeat_s
        self._offline_log_dirs = offline_log_dirs
        self._granted = granted
        self._registered_in: ControllerTerm | None = None
        self._sent_offset = 0
        self._wants_shutdown = False
        self._may_go = trio.Event()
        self._unfenced = trio.Event()
        self._news = trio.Event()
        self._disconnected_since: float | None = None
        self._disconnect_reason = ""
        self._has_logged_away = False
        self._disconnected = trio.Event()

    async def register(self) -> int:
        """Register for the first time; return the end offset of the metadata that contains it.

        Waits for an active controller without a limit, and logs what it waits for. Raises
        RefusedError if the controller refuses this worker.
        """
        backoff = Backoff(self._random, RETRY_LEAST_S, RETRY_MOST_S)
        logged_at = self._clock.monotonic()
        while True:
            try:
                controller_term = await within(
                    self._clock, TELL_S, self._links.wait_controller_term
                )
                return await self._register(controller_term)
            except TimeoutError:
                log.warning("waiting for an active controller: %s", self._links.status_text)
                logged_at = self._clock.monotonic()
            except (CallError, KafkaError) as error:
                if self._clock.monotonic() - logged_at >= TELL_S:
                    log.warning("cannot register this worker: %s; retrying", _words(error))
                    logged_at = self._clock.monotonic()
                await sleep(self._clock, backoff.next_s())

    async def _register(self, controller_term: ControllerTerm) -> int:
        """Register with `controller_term`; return the end offset of the registration.

        Raises CallError or KafkaError if a retry may succeed, else RefusedError.
        """
        try:
            changed = await controller_term.call(REGISTER_WORKER, self.registration, CALL_S)
        except KafkaError as error:
            if error.code in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST):
                raise RefusedError(
                    f"{controller_term} refused to register this worker: {error.message}"
                ) from None
            raise
        if changed.answer != self.broker_epoch:
            if self.broker_epoch >= 0:
                log.warning(
                    "worker %d was unregistered; it has registered again",
                    self.registration.worker_id,
                )
            self.broker_epoch = changed.answer
            self._granted(self.broker_epoch)
        self._registered_in = controller_term
        log.info(
            "worker %d is registered with %s, broker epoch %d",
            self.registration.worker_id,
            controller_term,
            self.broker_epoch,
        )
        return changed.end_offset

    @property
    def is_replaced(self) -> bool:
        """Whether the metadata names another process as this worker; then this one soon stops."""
        return _names_another(self._loader.image, self.registration)

    async def wait_unfenced(self) -> None:
        """Wait until the worker is unfenced and may serve its partitions."""
        await self._unfenced.wait()

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Send a heartbeat soon if the metadata changes workers or a worker is shutting down.

        This is the last publisher of the loader. A worker in controlled shutdown may stop only
        when the heartbeats of all others show that they have applied the metadata committed when
        the controller checked.
        """
        if delta.worker_ids or any(
            worker.in_controlled_shutdown and not worker.fenced for worker in image.workers.values()
        ):
            self.heartbeat_soon()

    def heartbeat_soon(self) -> None:
        """Send the next heartbeat without waiting for the interval."""
        self._news.set()

    async def shut_down(self, timeout_s: float) -> bool:
        """Request a controlled shutdown and wait; return whether the controller has granted it.

        Returns False after `timeout_s` seconds, or after FORSAKEN_S seconds without an active
        controller. `run` must be running.
        """
        self._wants_shutdown = True
        self.heartbeat_soon()
        async with trio.open_nursery() as nursery:
            scope = nursery.cancel_scope
            nursery.start_soon(_then_cancel, self._may_go.wait, scope)
            nursery.start_soon(_then_cancel, partial(sleep, self._clock, timeout_s), scope)
            nursery.start_soon(_then_cancel, self._wait_forsaken, scope)
        return self._may_go.is_set()

    async def _wait_forsaken(self) -> None:
        """Wait until no controller has been active for FORSAKEN_S seconds."""
        while True:
            try:
                controller_term = await within(
                    self._clock, FORSAKEN_S, self._links.wait_controller_term
                )
            except TimeoutError:
                return
            await controller_term.over.wait()

    async def run(self) -> None:
        """Keep the session until cancelled.

        Raises RefusedError if a controller refuses to register the worker again.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._log_quorum_away)
            await self._keep()

    async def _keep(self) -> None:
        backoff = Backoff(self._random, RETRY_LEAST_S, RETRY_MOST_S)
        while True:
            controller_term = await self._wait_controller_term()
            try:
                if self._registered_in is not controller_term:
                    await self._register(controller_term)
                answer = await self._send_heartbeat(controller_term)
            except (CallError, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code in _UNREGISTERED:
                    self._registered_in = None
                log.debug("heartbeat to %s failed: %s", controller_term, _words(error))
                if not controller_term.over.is_set():
                    self._note_disconnected(_words(error))
                await sleep(self._clock, backoff.next_s())
                continue
            backoff.reset()
            self._note_reconnected(controller_term)
            self._note(answer)
            await sleep(self._clock, LEAST_HEARTBEAT_S)
            await self._wait_due(controller_term, answer)

    async def _wait_controller_term(self) -> ControllerTerm:
        if self._links.controller_term is None:
            self._note_disconnected("no controller is active")
        return await self._links.wait_controller_term()

    async def _send_heartbeat(self, controller_term: ControllerTerm) -> HeartbeatAnswer:
        self._news = trio.Event()
        self._sent_offset = self._loader.visible.end_offset
        heartbeat = WorkerHeartbeat(
            self.registration.worker_id,
            self.broker_epoch,
            self._sent_offset,
            self._wants_shutdown,
            self._offline_log_dirs(),
        )
        return await controller_term.call(HEARTBEAT, heartbeat, CALL_S)

    def _note(self, answer: HeartbeatAnswer) -> None:
        if answer.is_fenced and not self.is_fenced and not self._wants_shutdown:
            log.warning(
                "the controller has fenced this worker (the controller's log has the reason); the"
                " worker is unfenced once it has caught up with the metadata"
            )
        self.is_fenced = answer.is_fenced
        if answer.is_fenced:
            if self._unfenced.is_set():
                self._unfenced = trio.Event()
        else:
            self._unfenced.set()
        if answer.should_shut_down:
            self._may_go.set()

    @property
    def _interval_s(self) -> float:
        if self._wants_shutdown:
            return min(self._heartbeat_s, LEAVING_HEARTBEAT_S)
        return self._heartbeat_s

    async def _wait_due(self, controller_term: ControllerTerm, answer: HeartbeatAnswer) -> None:
        """Wait until the next heartbeat is due: interval, changed state, or end of the term."""
        waits: list[Callable[[], Awaitable[None]]] = [
            partial(sleep, self._clock, self._interval_s),
            self._news.wait,
            controller_term.over.wait,
        ]
        if answer.is_fenced or self._wants_shutdown:
            waits.append(partial(self._loader.wait_visible, self._sent_offset + 1))
        async with trio.open_nursery() as nursery:
            for wait in waits:
                nursery.start_soon(_then_cancel, wait, nursery.cancel_scope)

    # Logging while no controller is active

    def _note_disconnected(self, why: str) -> None:
        if self._disconnected_since is None:
            self._disconnected_since = self._clock.monotonic()
            self._disconnected.set()
        self._disconnect_reason = why

    async def _log_quorum_away(self) -> None:
        while True:
            await self._disconnected.wait()
            self._disconnected = trio.Event()
            await sleep(self._clock, DISCONNECTED_LOG_S)
            since = self._disconnected_since
            if since is not None and not self._disconnected.is_set():
                self._has_logged_away = True
                log.warning(
                    "the quorum is unavailable (%s): this worker keeps serving its partitions;"
                    " requests that need the quorum wait or fail: %s",
                    self._disconnect_reason,
                    self._links.status_text,
                )

    def _note_reconnected(self, controller_term: ControllerTerm) -> None:
        if self._has_logged_away and self._disconnected_since is not None:
            log.warning(
                "the quorum is available again after %.1f s: %s",
                self._clock.monotonic() - self._disconnected_since,
                controller_term,
            )
        self._disconnected_since, self._disconnect_reason, self._has_logged_away = None, "", False


async def _then_cancel(wait: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()


def _words(error: Exception) -> str:
    return error.message if isinstance(error, KafkaError) else str(error)
