"""Worker sessions compared with a model that computes everything from the list of all events."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.records import RegisterWorkerRecord
from metaquorum.quorum.controller.heartbeats import (
    COMEBACK_GRACE_S,
    RECONNECT_GRACE_S,
    HeartbeatAnswer,
    SessionAction,
    WorkerHeartbeat,
    WorkerSessions,
)
from tests.examples import examples

TIMEOUT_S = 9.0


def worker(
    worker_id: int,
    epoch: int = 10,
    *,
    incarnation: int = 0,
    fenced: bool = False,
    in_shutdown: bool = False,
) -> RegisterWorkerRecord:
    return RegisterWorkerRecord(
        worker_id, bytes([incarnation] * 16), epoch, (), "h", None, (), (), fenced, in_shutdown
    )


class Cluster:
    """Sessions, the workers of the image, and the list of all events for the model."""

    def __init__(self) -> None:
        self.sessions = WorkerSessions(TIMEOUT_S)
        self.workers: dict[int, RegisterWorkerRecord] = {}
        self.now = 100.0
        self.end_offset = 10
        self.events: list[tuple[float, str, int, bytes]] = []
        self.begin()

    def begin(self) -> None:
        self.events.append((self.now, "begin", -1, b""))
        self.sessions.begin(dict(self.workers), self.end_offset, self.now)

    def note(self, what: str, worker_id: int, incarnation: bytes) -> None:
        self.events.append((self.now, what, worker_id, incarnation))

    def change(self, record: RegisterWorkerRecord | None, worker_id: int = 0) -> None:
        """Put this state of a worker into the image."""
        self.end_offset += 1
        if record is None:
            self.workers.pop(worker_id, None)
        else:
            self.workers[record.worker_id] = record
        self.sessions.follow(dict(self.workers), self.end_offset, self.now)

    def beat(
        self, worker_id: int, applied: int | None = None, *, wants_shutdown: bool = False
    ) -> tuple[SessionAction, HeartbeatAnswer]:
        record = self.workers[worker_id]
        heartbeat = WorkerHeartbeat(
            worker_id,
            record.broker_epoch,
            self.end_offset if applied is None else applied,
            wants_shutdown,
        )
        self.note("heard", worker_id, record.incarnation_id)
        self.sessions.heard(heartbeat, self.now)
        step = self.sessions.step(heartbeat)
        return step, self.sessions.answer(heartbeat, self.end_offset)

    def deadline(self, record: RegisterWorkerRecord) -> float:
        """Return a worker's deadline, computed from all events by the rules."""
        connections, signs, closed = 0, [], -inf
        peer_closed, registered_as = inf, b""
        begun = max(at for at, what, _, _ in self.events if what == "begin")
        for number, (at, what, worker_id, incarnation) in enumerate(self.events):
            mine = (worker_id, incarnation) == (record.worker_id, record.incarnation_id)
            if what == "begin" and connections:
                signs.append((number, at))
            if worker_id == record.worker_id:
                if what == "registered":
                    registered_as = incarnation
                if what == "peer closed":
                    peer_closed = at
                elif what in ("peer came", "heard", "registered") or (
                    what == "connected" and incarnation == registered_as
                ):
                    peer_closed = inf
            if not mine:
                continue
            connections += {"connected": 1, "disconnected": -1}.get(what, 0)
            if what in ("connected", "heard", "registered"):
                signs.append((number, at))
            if what == "disconnected" and connections == 0:
                closed = number
        last_begin = max(n for n, event in enumerate(self.events) if event[1] == "begin")
        registered = max(
            (
                n
                for n, event in enumerate(self.events)
                if event[1] == "registered"
                and event[2:] == (record.worker_id, record.incarnation_id)
            ),
            default=-1,
        )
        signs = [sign for sign in signs if sign[0] >= max(last_begin, registered)]
        evidence = peer_closed + RECONNECT_GRACE_S if not connections else inf
        if not signs:
            return min(begun + COMEBACK_GRACE_S, evidence)
        number, at = signs[-1]
        if closed > number:
            evidence = min(evidence, self.events[int(closed)][0] + RECONNECT_GRACE_S)
        return min(at + TIMEOUT_S, evidence)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "register",
                "beat",
                "connect",
                "disconnect",
                "peer closes",
                "peer comes",
                "term",
                "fence",
                "unfence",
                "forget",
            ]
        ),
        st.sampled_from([1, 1, 2]),
        st.sampled_from([0, 0, 0, 1]),
        st.sampled_from([0.0, 0.1, 0.15, 0.3, 4.0, 8.95]),
    ),
    max_size=40,
)


@given(OPERATIONS)
@examples(300)
def test_who_is_overdue_and_when_is_as_the_rules_say(
    operations: list[tuple[str, int, int, float]],
) -> None:
    cluster, connections = Cluster(), dict[tuple[int, bytes], int]()
    for what, worker_id, incarnation, elapsed in operations:
        cluster.now += elapsed
        known = cluster.workers.get(worker_id)
        identity = bytes([incarnation] * 16)
        match what:
            case "register":
                if known is None or known.incarnation_id != identity:
                    cluster.note("registered", worker_id, identity)
                    cluster.change(worker(worker_id, cluster.end_offset, incarnation=incarnation))
            case "beat" if known is not None:
                cluster.beat(worker_id)
            case "connect":
                cluster.note("connected", worker_id, identity)
                connections[worker_id, identity] = connections.get((worker_id, identity), 0) + 1
                cluster.sessions.connected(worker_id, identity, cluster.now)
            case "disconnect" if connections.get((worker_id, identity)):
                cluster.note("disconnected", worker_id, identity)
                connections[worker_id, identity] -= 1
                cluster.sessions.disconnected(worker_id, identity, cluster.now, is_evidence=True)
            case "peer closes":
                cluster.note("peer closed", worker_id, b"")
                cluster.sessions.peer_closed(worker_id, cluster.now)
            case "peer comes":
                cluster.note("peer came", worker_id, b"")
                cluster.sessions.peer_came(worker_id)
            case "term":
                cluster.begin()
            case "fence" | "unfence" if known is not None:
                cluster.change(replace(known, fenced=what == "fence"))
            case "forget":
                cluster.change(None, worker_id)
        live = [each for each in cluster.workers.values() if not each.fenced]
        deadlines = {each.worker_id: cluster.deadline(each) for each in live}
        assert cluster.sessions.next_deadline() == min(deadlines.values(), default=inf)
        assert cluster.sessions.overdue(cluster.now) == sorted(
            each for each, deadline in deadlines.items() if deadline <= cluster.now
        )


def test_only_the_last_of_several_connections_counts_when_it_closes() -> None:
    cluster = Cluster()
    cluster.change(worker(1))
    for _ in range(2):
        cluster.sessions.connected(1, bytes(16), cluster.now)
    cluster.sessions.disconnected(1, bytes(16), cluster.now, is_evidence=True)
    assert cluster.sessions.next_deadline() == cluster.now + TIMEOUT_S
    cluster.sessions.disconnected(1, bytes(16), cluster.now, is_evidence=True)
    assert cluster.sessions.next_deadline() == cluster.now + RECONNECT_GRACE_S
    cluster.now += RECONNECT_GRACE_S
    assert cluster.sessions.overdue(cluster.now) == [1]
    assert "connection closed" in cluster.sessions.why_fenced(1)


def test_a_new_active_controller_knows_of_the_process_that_it_replaces() -> None:
    cluster = Cluster()
    for number in (1, 2):
        cluster.change(worker(number))
    cluster.sessions.peer_closed(1, cluster.now)
    cluster.now += RECONNECT_GRACE_S
    cluster.begin()
    assert cluster.sessions.overdue(cluster.now) == [1]
    assert "connection closed" in cluster.sessions.why_fenced(1)
    cluster.sessions.peer_came(1)
    assert cluster.sessions.overdue(cluster.now) == []
    assert cluster.sessions.next_deadline() == cluster.now + COMEBACK_GRACE_S


def test_a_worker_is_unfenced_once_it_has_applied_its_registration() -> None:
    cluster = Cluster()
    cluster.change(worker(1, 20, fenced=True))
    step, answer = cluster.beat(1, 20)
    assert (step, answer.is_fenced, answer.is_caught_up) == (SessionAction.NONE, True, False)
    step, answer = cluster.beat(1, 21)
    assert (step, answer.is_caught_up) == (SessionAction.UNFENCE, True)
    cluster.change(worker(1, 20))
    step, answer = cluster.beat(1, 21)
    assert (step, answer.is_fenced) == (SessionAction.NONE, False)


def test_a_worker_that_comes_back_must_have_seen_that_it_was_fenced() -> None:
    cluster = Cluster()
    cluster.change(worker(1))
    seen = cluster.end_offset
    cluster.change(worker(1, fenced=True))
    assert cluster.beat(1, seen)[0] is SessionAction.NONE
    assert cluster.beat(1, cluster.end_offset)[0] is SessionAction.UNFENCE
    cluster.end_offset += 5
    cluster.begin()  # the new controller does not know when it was fenced
    assert cluster.beat(1, cluster.end_offset - 1)[0] is SessionAction.NONE
    assert cluster.beat(1, cluster.end_offset)[0] is SessionAction.UNFENCE


def test_a_worker_may_go_once_all_others_know_that_it_leads_nothing() -> None:
    cluster = Cluster()
    for number in (1, 2):
        cluster.change(worker(number))
    before = cluster.end_offset
    cluster.beat(2, before)
    step, answer = cluster.beat(1, wants_shutdown=True)
    assert (step, answer.should_shut_down) == (SessionAction.SHUT_DOWN, False)
    cluster.change(worker(1, in_shutdown=True))
    assert cluster.beat(1, wants_shutdown=True)[0] is SessionAction.NONE
    cluster.beat(2, cluster.end_offset)
    assert cluster.beat(1, wants_shutdown=True)[0] is SessionAction.FENCE
    cluster.change(worker(1, fenced=True, in_shutdown=True))
    step, answer = cluster.beat(1, wants_shutdown=True)
    assert (step, answer.should_shut_down, answer.is_fenced) == (SessionAction.NONE, True, True)


@pytest.mark.parametrize("other", [{"fenced": True}, {"in_shutdown": True}])
def test_a_shutdown_waits_for_no_worker_that_is_fenced_or_shutting_down(
    other: dict[str, bool],
) -> None:
    cluster = Cluster()
    for each in (worker(1), worker(2), worker(3, **other)):
        cluster.change(each)
    behind = cluster.end_offset
    cluster.change(worker(1, in_shutdown=True))
    cluster.beat(3, behind)
    cluster.beat(2, behind)
    assert cluster.beat(1, wants_shutdown=True)[0] is SessionAction.NONE
    cluster.beat(2)
    assert cluster.beat(1, wants_shutdown=True)[0] is SessionAction.FENCE


def test_a_number_is_held_by_who_is_alive_and_not_about_to_go() -> None:
    cluster, mine, other = Cluster(), bytes(16), bytes([7] * 16)

    def held(incarnation: bytes = other) -> bool:
        return cluster.sessions.is_held(1, incarnation, cluster.now)

    assert not held()
    cluster.change(worker(1))
    assert held()
    assert not held(mine)
    cluster.sessions.connected(1, mine, cluster.now)
    cluster.sessions.disconnected(1, mine, cluster.now, is_evidence=True)
    assert not held()  # a killed process may be restarted at once
    cluster.beat(1)
    assert held()
    cluster.now += TIMEOUT_S
    assert not held()
    cluster.beat(1)
    cluster.change(worker(1, in_shutdown=True))
    assert not held()
    cluster.change(worker(1))
    cluster.begin()
    assert not held()  # no worker has sent a heartbeat in this term


def test_time_in_which_this_process_stood_still_counts_against_nobody() -> None:
    cluster = Cluster()
    cluster.change(worker(1))
    cluster.now += 30
    assert cluster.sessions.overdue(cluster.now) == [1]
    cluster.sessions.postpone(29)
    assert cluster.sessions.overdue(cluster.now) == []
    cluster.now += TIMEOUT_S - 1
    assert cluster.sessions.overdue(cluster.now) == [1]
    assert cluster.sessions.why_fenced(1) == "its session timed out: no heartbeat for 9000 ms"


@pytest.mark.parametrize("connected", [True, False])
def test_people_are_told_what_is_known(connected: bool) -> None:
    cluster = Cluster()
    cluster.change(worker(1, fenced=True))
    if connected:
        cluster.sessions.connected(1, bytes(16), cluster.now)
    cluster.beat(1, 7)
    cluster.now += 1.5
    (status,) = cluster.sessions.statuses(cluster.now)
    assert (status.applied_offset, status.heard_ms_ago) == (7, 1500)
    assert status.connections == connected
    assert "still catching up" in status.why_fenced
