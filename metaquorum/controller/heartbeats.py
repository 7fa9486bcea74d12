"""What the active controller knows of its workers that is in no log: who was heard of, and when.

A session belongs to one registration (one broker epoch) in one term of the controller. What is
durable (registered, fenced, in controlled shutdown) stands in the image, which `follow` is told of.
Here is when to change it:

    the image says      what happens                                          the step to take
    fenced              heartbeat, wants to shut down                         none: it may go
    fenced              heartbeat, has not applied what it must               none
    fenced              heartbeat, has applied that                           UNFENCE
    live                heartbeat                                             none
    live                heartbeat, wants to shut down                         SHUT_DOWN
    in shutdown         heartbeat, a live worker has not applied that yet     none
    in shutdown         heartbeat, all live workers have                      FENCE, it may go
    live or in shutdown silent for broker.session.timeout.ms                  it is overdue
    live or in shutdown its last connection closed, 100 ms ago                it is overdue
    live or in shutdown so did the stream of its process's voter, and it is   it is overdue
                        not connected otherwise
    live or in shutdown a new term, and not heard of for its first 600 ms     it is overdue
    overdue             -                                                     FENCE

What a worker must have applied before it is unfenced: its own registration, and the fencing that it
comes back from, so that it cannot believe that it still leads. A heartbeat, a registration and a
connection are all signs of life. Heartbeats write nothing to the log.

A closed connection is evidence: a process that is killed is noticed at once, where Kafka waits for
the session to time out. Only a host that vanishes, or a network that is cut, has to be waited for.
Connections are facts about this process, not about a term; they are counted throughout. So a
voter that becomes active knows of the process that it replaces: the one that was active was a
worker, too, and its kernel has closed its stream to every other voter.

When all processes were killed at once, the first to come back finds the others live in the image.
To leave the ISRs to them would be wrong, as they may not come back; so it waits until it is known
who is there. Then all are fenced as one, and stay in the ISRs together.

Source: KIP-631; Kafka's BrokerHeartbeatManager.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final

from metaquorum.metadata.records import RegisterWorkerRecord
from wire.primitives.frozen import frozen

RECONNECT_GRACE_S: Final = 0.1
COMEBACK_GRACE_S: Final = 0.6


@frozen
class WorkerHeartbeat:
    """A worker is alive, and has taken in the metadata before `applied_offset`."""

    worker_id: int
    broker_epoch: int
    applied_offset: int
    wants_shutdown: bool = False
    offline_log_dirs: tuple[bytes, ...] = ()


@frozen
class HeartbeatAnswer:
    """What the controller makes of that worker; `end_offset` is of the metadata committed."""

    is_fenced: bool
    is_caught_up: bool
    should_shut_down: bool
    end_offset: int


@frozen
class WorkerStatus:
    """What is known of a worker beside its registration, for people. -1: not in this term."""

    worker_id: int
    applied_offset: int
    heard_ms_ago: int
    connections: int
    offline_log_dirs: tuple[bytes, ...]
    why_fenced: str


class SessionAction(Enum):
    """What the controller is to do about a worker."""

    NONE = "none"
    UNFENCE = "unfence"
    SHUT_DOWN = "shut down"
    FENCE = "fence"


@dataclass(slots=True)
class _Session:
    worker: RegisterWorkerRecord  # as the image has it
    heard_at: float | None  # None: not in this term
    must_apply: int  # metadata that ends here, before it is unfenced
    shutdown_offset: int  # what the others must apply, before it may go
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
        self._peers_closed: dict[int, float] = {}  # when, of voters that have not come back

    def begin(
        self, workers: Mapping[int, RegisterWorkerRecord], end_offset: int, now: float
    ) -> None:
        """A new term: nobody was heard of yet, but for those who are connected."""
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
        """These are the workers, as of the metadata that ends at `end_offset`."""
        if workers is self._workers:
            return
        self._workers = workers
        for worker_id in [each for each in self._sessions if each not in workers]:
            del self._sessions[worker_id]
        for worker_id, worker in workers.items():
            session = self._sessions.get(worker_id)
            if session is None or session.worker.broker_epoch != worker.broker_epoch:
                session = _Session(worker, now, worker.broker_epoch + 1, end_offset)
                session.why_fenced = "it has registered, and not yet caught up"
                self._sessions[worker_id] = session
                self._peers_closed.pop(worker_id, None)
            if worker.fenced and not session.worker.fenced:
                session.must_apply = end_offset
            if worker.in_controlled_shutdown and not session.worker.in_controlled_shutdown:
                session.shutdown_offset = end_offset
            session.worker = worker

    # Signs of life, and of none

    def heard(self, heartbeat: WorkerHeartbeat, now: float) -> None:
        """A heartbeat of the registration that the image has."""
        session = self._sessions[heartbeat.worker_id]
        assert session.worker.broker_epoch == heartbeat.broker_epoch
        session.heard_at, session.closed_at = now, None
        self._peers_closed.pop(heartbeat.worker_id, None)
        session.applied_offset = max(session.applied_offset, heartbeat.applied_offset)
        session.offline_log_dirs = heartbeat.offline_log_dirs

    def seen(self, worker_id: int, incarnation_id: bytes, now: float) -> None:
        """That process is alive: it has registered again, for one."""
        session = self._sessions.get(worker_id)
        if session is not None and session.worker.incarnation_id == incarnation_id:
            session.heard_at, session.closed_at = now, None
            self._peers_closed.pop(worker_id, None)

    def connected(self, worker_id: int, incarnation_id: bytes, now: float) -> None:
        """That process has one more connection to this one."""
        key = worker_id, incarnation_id
        self._connections[key] = self._connections.get(key, 0) + 1
        self.seen(worker_id, incarnation_id, now)

    def disconnected(self, worker_id: int, incarnation_id: bytes, now: float) -> None:
        """That process has one connection less."""
        key = worker_id, incarnation_id
        count = self._connections.pop(key) - 1
        if count:
            self._connections[key] = count
            return
        session = self._sessions.get(worker_id)
        if session is not None and session.worker.incarnation_id == incarnation_id:
            session.closed_at = now

    def peer_came(self, voter_id: int) -> None:
        """The voter of that number has a stream to this one."""
        self._peers_closed.pop(voter_id, None)

    def peer_closed(self, voter_id: int, now: float) -> None:
        """It has none any more, and closed it itself: so has the worker beside it, or soon will."""
        self._peers_closed[voter_id] = now

    def postpone(self, seconds: float) -> None:
        """This process itself stood still for so long: that counts against nobody."""
        self._begun_at += seconds
        for voter_id in self._peers_closed:
            self._peers_closed[voter_id] += seconds
        for session in self._sessions.values():
            if session.heard_at is not None:
                session.heard_at += seconds
            if session.closed_at is not None:
                session.closed_at += seconds

    # What to do

    def step(self, heartbeat: WorkerHeartbeat) -> SessionAction:
        """What this heartbeat calls for, once it was `heard`; see the table above."""
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
            session.why_fenced = "it has shut down"
            return SessionAction.FENCE
        if worker.fenced and self.is_caught_up(heartbeat.worker_id):
            return SessionAction.UNFENCE
        return SessionAction.NONE

    def is_caught_up(self, worker_id: int) -> bool:
        session = self._sessions[worker_id]
        return session.applied_offset >= session.must_apply

    def answer(self, heartbeat: WorkerHeartbeat, end_offset: int) -> HeartbeatAnswer:
        """What the worker is told, after all steps were taken."""
        session = self._sessions[heartbeat.worker_id]
        return HeartbeatAnswer(
            session.worker.fenced,
            self.is_caught_up(heartbeat.worker_id),
            heartbeat.wants_shutdown and session.may_go,
            end_offset,
        )

    def is_held(self, worker_id: int, incarnation_id: bytes, now: float) -> bool:
        """Another process of that number is alive, and is not about to go."""
        session = self._sessions.get(worker_id)
        if session is None or session.worker.incarnation_id == incarnation_id:
            return False
        leaving = session.may_go or session.worker.in_controlled_shutdown
        if session.heard_at is None or session.closed_at is not None or leaving:
            return False
        return now < self._deadline(session)

    def may_be_alive(self, worker_id: int, now: float) -> bool:
        """The worker's process was heard of within the session timeout, or may have been.

        In a new term a worker that was not heard of yet has all of that time to be: the session
        that it had with the active controller before is not known here. A closed connection ends
        that sooner, 100 ms later; an open one is no sign of life, as a stopped process keeps it.
        """
        session = self._sessions.get(worker_id)
        if session is None:
            return False
        heard_at = self._begun_at if session.heard_at is None else session.heard_at
        return now < self._or_closed(session, heard_at + self._session_timeout_s)

    def awaits_others(self, worker_id: int) -> bool:
        """Somebody else was live before this term, and may be yet: it has 600 ms to say so."""
        return any(
            session.heard_at is None and not session.worker.fenced
            for other, session in self._sessions.items()
            if other != worker_id
        )

    def overdue(self, now: float) -> list[int]:
        """The workers to be fenced, in order of their numbers; why is noted."""
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
        """When, if nothing is heard until then, somebody will be overdue; infinity for never."""
        return min(
            (self._deadline(each) for each in self._sessions.values() if not each.worker.fenced),
            default=inf,
        )

    def statuses(self, now: float) -> Iterator[WorkerStatus]:
        """Everything known, worker by worker."""
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
        """What every live worker has applied."""
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
        """A stream alone may break; a process that is still connected is still there."""
        if self._is_connected(session.worker):
            return None
        return self._peers_closed.get(session.worker.worker_id)

    def _overdue_reason(self, session: _Session, now: float) -> str:
        if session.closed_at is not None or self._peer_closed_at(session) is not None:
            return "its connection closed, and it did not come back"
        if session.heard_at is None:
            return "it did not come back to the new active controller"
        return f"it was silent for {int((now - session.heard_at) * 1000)} ms"
