"""Worker sessions of the active controller: liveness that is kept in memory, not in the log.

A session belongs to one registration (one broker epoch) in one term of the controller. The durable
state (registered, fenced, in controlled shutdown) is in the image, which `follow` receives. This
module decides when to change it:

    state in the image  event                                                 step
    fenced              heartbeat, requests shutdown                          none: it may shut down
    fenced              heartbeat, required offset not applied                none
    fenced              heartbeat, required offset applied                    UNFENCE
    live                heartbeat                                             none
    live                heartbeat, requests shutdown                          SHUT_DOWN
    in shutdown         heartbeat, a live worker has not applied the          none
                        shutdown
    in shutdown         heartbeat, all live workers have applied it           FENCE, then it may
                                                                              shut down
    live or in shutdown no sign of life for broker.session.timeout.ms         it is overdue
    live or in shutdown it closed its last connection 100 ms ago              it is overdue
    live or in shutdown the stream of its process's voter closed 100 ms ago,  it is overdue
                        and it has no other connection
    live or in shutdown no sign of life in the first 600 ms of a new term     it is overdue
    overdue             -                                                     FENCE

Before a worker is unfenced, it must have applied its own registration and its last fencing, so that
it cannot consider itself a leader of partitions that it has lost. A heartbeat, a registration and a
connection are signs of life. Heartbeats write nothing to the log.

A connection that the worker's kernel closed reveals a killed process at once, while Kafka waits for
the session timeout. The timeout is needed only if a process is suspended, a host fails or the
network is partitioned: the connection is silent then, and this end closes it. Connections belong to
this process, not to a term, and are counted in all terms. So a voter that becomes active already
knows whether the process of the previous active controller is dead: that process was a worker too,
and its kernel has closed its stream to every other voter.

If all processes are killed at once, the first one to restart finds the others live in the image.
The ISRs must not be left to workers that may not return, so the controller waits until it knows
which workers are alive. Then it fences all others in one decision, and they stay in the ISRs
together.

Source: KIP-631; Kafka's BrokerHeartbeatManager.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final

from metaquorum.metadata.records import RegisterWorkerRecord
from metaquorum.wire.primitives.frozen import frozen

RECONNECT_GRACE_S: Final = 0.1
COMEBACK_GRACE_S: Final = 0.6


@frozen
class WorkerHeartbeat:
    """Heartbeat of a worker that has applied the metadata before `applied_offset`."""

    worker_id: int
    broker_epoch: int
    applied_offset: int
    wants_shutdown: bool = False
    offline_log_dirs: tuple[bytes, ...] = ()


@frozen
class HeartbeatAnswer:
    """Answer to a heartbeat. `end_offset` is the end offset of the committed metadata."""

    is_fenced: bool
    is_caught_up: bool
    should_shut_down: bool
    end_offset: int


@frozen
class WorkerStatus:
    """Status of a worker for operators, in addition to its registration.

    `applied_offset` and `heard_ms_ago` are -1 if unknown in this term.
    """

    worker_id: int
    applied_offset: int
    heard_ms_ago: int
    connections: int
    offline_log_dirs: tuple[bytes, ...]
    why_fenced: str


class SessionAction(Enum):
    """Step that the controller takes for a worker."""

    NONE = "none"
    UNFENCE = "unfence"
    SHUT_DOWN = "shut down"
    FENCE = "fence"


@dataclass(slots=True)
class _Session:
    worker: RegisterWorkerRecord  # as in the image
    heard_at: float | None  # last sign of life; None: none in this term
    must_apply: int  # end offset that it must apply before it is unfenced
    shutdown_offset: int  # end offset that the others must apply before it may shut down
    applied_offset: int = -1
    closed_at: float | None = None
    may_go: bool = False
    offline_log_dirs: tuple[bytes, ...] = ()
    why_fenced: str = ""


class WorkerSessions:
    """The sessions of one term; `begin` starts the next. `now` is monotonic, in seconds."""

    def __init__(self, session_timeout_s: float) -> None:
        self._session_timeout_s = session_timeout_s
        self._sessions: dict[int, _Session] = {}
        self._begun_at = 0.0
        self._workers: Mapping[int, RegisterWorkerRecord] = {}
        self._connections: dict[tuple[int, bytes], int] = {}
        self._peers_closed: dict[
            int, float
        ] = {}  # time of the close, by id of a disconnected voter

    def begin(
        self, workers: Mapping[int, RegisterWorkerRecord], end_offset: int, now: float
    ) -> None:
        """Start a new term, in which only connected workers have shown a sign of life."""
        self._workers = workers
        self._begun_at = now
        self._sessions = {
            worker_id: _Session(
                worker, now if self._is_connected(worker) else None, end_offset, end_offset
            )
            for worker_id, worker in workers.items()
        }

    def follow(
        self, workers: Mapping[int, RegisterWorkerRecord], end_offset: int, now: float
    ) -> None:
        """Update the sessions to the workers of the metadata that ends at `end_offset`."""
        if workers is self._workers:
            return
        self._workers = workers
        for worker_id in [each for each in self._sessions if each not in workers]:
            del self._sessions[worker_id]
        for worker_id, worker in workers.items():
            session = self._sessions.get(worker_id)
            if session is None or session.worker.broker_epoch != worker.broker_epoch:
                session = _Session(worker, now, worker.broker_epoch + 1, end_offset)
                session.why_fenced = "it has registered and is still catching up with the metadata"
                self._sessions[worker_id] = session
                self._peers_closed.pop(worker_id, None)
            if worker.fenced and not session.worker.fenced:
                session.must_apply = end_offset
            if worker.in_controlled_shutdown and not session.worker.in_controlled_shutdown:
                session.shutdown_offset = end_offset
            session.worker = worker

    # Signs of life, and their end

    def heard(self, heartbeat: WorkerHeartbeat, now: float) -> None:
        """Record a heartbeat. Its broker epoch must be that of the image."""
        session = self._sessions[heartbeat.worker_id]
        assert session.worker.broker_epoch == heartbeat.broker_epoch
        session.heard_at, session.closed_at = now, None
        self._peers_closed.pop(heartbeat.worker_id, None)
        session.applied_offset = max(session.applied_offset, heartbeat.applied_offset)
        session.offline_log_dirs = heartbeat.offline_log_dirs

    def seen(self, worker_id: int, incarnation_id: bytes, now: float) -> None:
        """Record a sign of life of that process, such as a repeated registration."""
        session = self._sessions.get(worker_id)
        if session is not None and session.worker.incarnation_id == incarnation_id:
            session.heard_at, session.closed_at = now, None
            self._peers_closed.pop(worker_id, None)

    def connected(self, worker_id: int, incarnation_id: bytes, now: float) -> None:
        """Count a new connection of that process to this process."""
        key = worker_id, incarnation_id
        self._connections[key] = self._connections.get(key, 0) + 1
        self.seen(worker_id, incarnation_id, now)

    def disconnected(
        self, worker_id: int, incarnation_id: bytes, now: float, *, is_evidence: bool
    ) -> None:
        """Count an ended connection of that process.

        `is_evidence`: that process, or its kernel, closed the connection. If the connection was
        silent instead, the process may be suspended, or the network partitioned.
        """
        key = worker_id, incarnation_id
        count = self._connections.pop(key) - 1
        if count:
            self._connections[key] = count
            return
        session = self._sessions.get(worker_id)
        if session is None or session.worker.incarnation_id != incarnation_id:
            return
        if is_evidence:
            session.closed_at = now

    def peer_came(self, voter_id: int) -> None:
        """Note that the voter has a stream to this voter."""
        self._peers_closed.pop(voter_id, None)

    def peer_closed(self, voter_id: int, now: float) -> None:
        """Note that the voter closed its last stream; the worker of that process has ended too."""
        self._peers_closed[voter_id] = now

    def postpone(self, seconds: float) -> None:
        """Extend all deadlines by `seconds`, during which this process itself was suspended."""
        self._begun_at += seconds
        for voter_id in self._peers_closed:
            self._peers_closed[voter_id] += seconds
        for session in self._sessions.values():
            if session.heard_at is not None:
                session.heard_at += seconds
            if session.closed_at is not None:
                session.closed_at += seconds

    # Steps

    def step(self, heartbeat: WorkerHeartbeat) -> SessionAction:
        """Return the step that a recorded heartbeat requires; see the table above."""
        session = self._sessions[heartbeat.worker_id]
        worker = session.worker
        if heartbeat.wants_shutdown:
            if worker.fenced:
                session.may_go = True
                return SessionAction.NONE
            if not worker.in_controlled_shutdown:
                return SessionAction.SHUT_DOWN
            if self._least_applied() < session.shutdown_offset:
                return SessionAction.NONE
            session.why_fenced = "controlled shutdown is complete"
            return SessionAction.FENCE
        if worker.fenced and self.is_caught_up(heartbeat.worker_id):
            return SessionAction.UNFENCE
        return SessionAction.NONE

    def is_caught_up(self, worker_id: int) -> bool:
        session = self._sessions[worker_id]
        return session.applied_offset >= session.must_apply

    def answer(self, heartbeat: WorkerHeartbeat, end_offset: int) -> HeartbeatAnswer:
        """Return the answer to the worker, after all steps are committed."""
        session = self._sessions[heartbeat.worker_id]
        return HeartbeatAnswer(
            session.worker.fenced,
            self.is_caught_up(heartbeat.worker_id),
            heartbeat.wants_shutdown and session.may_go,
            end_offset,
        )

    def is_held(self, worker_id: int, incarnation_id: bytes, now: float) -> bool:
        """Return whether another process with that worker id is alive and not shutting down."""
        session = self._sessions.get(worker_id)
        if session is None or session.worker.incarnation_id == incarnation_id:
            return False
        leaving = session.may_go or session.worker.in_controlled_shutdown
        if session.heard_at is None or session.closed_at is not None or leaving:
            return False
        return now < self._deadline(session)

    def may_be_alive(self, worker_id: int, now: float) -> bool:
        """Return whether the worker gave, or may have given, a sign of life within the timeout.

        In a new term a silent worker counts as alive for the full session timeout, because the
        session that it had with the previous active controller is unknown here. A closed connection
        shortens this to 100 ms after the close. An open connection is not a sign of life here,
        because a suspended process keeps it open.
        """
        session = self._sessions.get(worker_id)
        if session is None:
            return False
        heard_at = self._begun_at if session.heard_at is None else session.heard_at
        return now < self._or_closed(session, heard_at + self._session_timeout_s)

    def awaits_others(self, worker_id: int) -> bool:
        """Return whether another worker that was live before this term is still unaccounted for.

        Such a worker is fenced if it gives no sign of life within 600 ms.
        """
        return any(
            session.heard_at is None and not session.worker.fenced
            for other, session in self._sessions.items()
            if other != worker_id
        )

    def overdue(self, now: float) -> list[int]:
        """Return the ids of the workers to fence, sorted, and record the reason of each."""
        late = [
            worker_id
            for worker_id, session in sorted(self._sessions.items())
            if not session.worker.fenced and now >= self._deadline(session)
        ]
        for worker_id in late:
            self._sessions[worker_id].why_fenced = self._overdue_reason(
                self._sessions[worker_id], now
            )
        return late

    def next_deadline(self) -> float:
        """Return the time at which the next silent worker becomes overdue; infinity for never."""
        return min(
            (self._deadline(each) for each in self._sessions.values() if not each.worker.fenced),
            default=inf,
        )

    def statuses(self, now: float) -> Iterator[WorkerStatus]:
        """Yield the status of each worker, sorted by id."""
        for worker_id, session in sorted(self._sessions.items()):
            heard = session.heard_at
            yield WorkerStatus(
                worker_id,
                session.applied_offset,
                -1 if heard is None else int((now - heard) * 1000),
                self._connections.get((worker_id, session.worker.incarnation_id), 0),
                session.offline_log_dirs,
                session.why_fenced if session.worker.fenced else "",
            )

    def why_fenced(self, worker_id: int) -> str:
        session = self._sessions.get(worker_id)
        return "" if session is None else session.why_fenced

    def _is_connected(self, worker: RegisterWorkerRecord) -> bool:
        return (worker.worker_id, worker.incarnation_id) in self._connections

    def _least_applied(self) -> float:
        """Return the smallest offset that the live workers have applied; infinity without any."""
        return min(
            (
                session.applied_offset
                for session in self._sessions.values()
                if not session.worker.fenced and not session.worker.in_controlled_shutdown
            ),
            default=inf,
        )

    def _deadline(self, session: _Session) -> float:
        if session.heard_at is None:
            deadline = self._begun_at + COMEBACK_GRACE_S
        else:
            deadline = session.heard_at + self._session_timeout_s
        return self._or_closed(session, deadline)

    def _or_closed(self, session: _Session, deadline: float) -> float:
        for closed_at in (session.closed_at, self._peer_closed_at(session)):
            if closed_at is not None:
                deadline = min(deadline, closed_at + RECONNECT_GRACE_S)
        return deadline

    def _peer_closed_at(self, session: _Session) -> float | None:
        """Return when the voter of this process closed its stream.

        None while the process has a connection: a stream alone may break.
        """
        if self._is_connected(session.worker):
            return None
        return self._peers_closed.get(session.worker.worker_id)

    def _overdue_reason(self, session: _Session, now: float) -> str:
        if session.closed_at is not None or self._peer_closed_at(session) is not None:
            return "its connection closed, and it did not reconnect"
        if session.heard_at is None:
            return "it did not connect to the new active controller"
        return f"its session timed out: no heartbeat for {int((now - session.heard_at) * 1000)} ms"
