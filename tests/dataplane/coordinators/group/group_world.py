"""Clients of one classic group that follow its protocol or break it, and what must always hold.

A client only knows its answers. The checks compare these with each other and with the log; they use
the group's own state only to see which members it counts.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dataplane.coordinators.group.classic_group import NEW_MEMBER_JOIN_TIMEOUT_S
from dataplane.coordinators.group.group_state import State
from dataplane.coordinators.group.membership import PENDING_BYTES
from dataplane.coordinators.group.requests import (
    JoinAnswer,
    LeaveMember,
    Protocol,
    SyncAnswer,
)
from tests.dataplane.coordinators.group.group_driver import Asked, Driver
from wire.primitives.errors import ErrorCode

PARTITIONS = 5
DELAY_MS = 3_000
SESSIONS_MS = (6_000, 10_000)
REBALANCES_MS = (8_000, 20_000)
COMMIT_TIMEOUT_S = 5.0
# The longest that a request may wait: for the commit of an earlier write, then for a rebalance.
LONGEST_WAIT_S = COMMIT_TIMEOUT_S + DELAY_MS / 1000 + max(REBALANCES_MS) / 1000
PROTOCOLS = (
    (Protocol("range", b"r"), Protocol("sticky", b"s")),
    (Protocol("sticky", b"s"), Protocol("range", b"r")),
    (Protocol("range", b"changed"),),
)
# The end of a sync starts the member's session.
STARTS_SESSION = {
    ErrorCode.NONE,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
# After these a client forgets its member id.
FORGET = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}


@dataclass
class Client:
    """A consumer: its view of the group, from answers alone."""

    name: str
    instance_id: str | None
    version: int
    session_ms: int
    rebalance_ms: int
    protocols: tuple[Protocol, ...] = PROTOCOLS[0]
    member_id: str = ""
    generation: int = -1
    joined: JoinAnswer | None = None
    assignment: bytes | None = None
    join: Asked[JoinAnswer] | None = None
    sync: Asked[SyncAnswer] | None = None

    def forget(self) -> None:
        self.member_id, self.generation = "", -1
        self.joined = self.assignment = None

    @property
    def identity(self) -> str:
        return self.instance_id or self.name


@dataclass
class World:
    """The group, its clients and its log."""

    driver: Driver
    clients: list[Client]
    owners: dict[int, dict[int, str]] = field(default_factory=dict)  # generation -> partition
    contacts: dict[str, float] = field(default_factory=dict)  # member id -> last sign of life
    waiting: list[Asked[Any]] = field(default_factory=list)
    written_at: dict[int, float] = field(default_factory=dict)  # id of a write in flight -> time
    seen: Counter[str] = field(default_factory=Counter)
    last_generation: int = 0

    def __post_init__(self) -> None:
        self.driver.on_answer = self.check_answer

    # Steps of a client

    def act(self, client: Client) -> None:
        """Do the next step that the protocol asks of a client."""
        self.collect(client)
        if client.join is not None or client.sync is not None:
            return
        if client.joined is None:
            self.start_join(client)
        elif client.assignment is None:
            self.start_sync(client, self.assignments(client, client.joined))
        else:
            self.heartbeat(client)

    def start_join(self, client: Client, *, member_id: str | None = None) -> None:
        asked = self.driver.join(
            client.member_id if member_id is None else member_id,
            instance_id=client.instance_id,
            protocols=client.protocols,
            session_ms=client.session_ms,
            rebalance_ms=client.rebalance_ms,
            version=client.version,
            client_id=client.name,
        )
        client.join = self._wait(asked)
        client.joined = client.assignment = None
        self.collect(client)

    def start_sync(self, client: Client, assignments: dict[str, bytes]) -> None:
        asked = self.driver.sync(
            client.member_id,
            client.generation,
            assignments,
            instance_id=client.instance_id,
            protocol=None,
        )
        client.sync = self._wait(asked)
        self.collect(client)

    def heartbeat(self, client: Client) -> None:
        error = self.driver.heartbeat(client.member_id, client.generation, client.instance_id)
        self.seen[f"heartbeat {error.name}"] += 1
        if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self.contacts[client.member_id] = self.driver.now
        if error in FORGET:
            client.forget()
        elif error is not ErrorCode.NONE:
            client.joined = client.assignment = None

    def leave(self, client: Client, *, by_instance: bool) -> None:
        by_instance = by_instance and client.instance_id is not None
        member_id = "" if by_instance else client.member_id
        self.driver.leave(LeaveMember(member_id, client.instance_id))
        client.forget()

    def crash(self, client: Client) -> None:
        """Restart a client, which forgets everything and does not read its answers."""
        client.forget()
        client.join = client.sync = None

    @staticmethod
    def assignments(client: Client, joined: JoinAnswer) -> dict[str, bytes]:
        """Return what a leader assigns: each partition to one member."""
        if joined.leader != client.member_id or joined.skip_assignment or not joined.members:
            return {}
        parts: dict[str, list[int]] = {row.member_id: [] for row in joined.members}
        for partition in range(PARTITIONS):
            parts[joined.members[partition % len(parts)].member_id].append(partition)
        return {name: bytes(rows) for name, rows in parts.items()}

    def collect(self, client: Client) -> None:
        """Read the answers that have arrived."""
        if client.join is not None and not client.join.waits:
            answer, client.join = client.join.answer, None
            self.seen[f"join {answer.error.name}"] += 1
            self._joined(client, answer)
        if client.sync is not None and not client.sync.waits:
            synced, client.sync = client.sync.answer, None
            self.seen[f"sync {synced.error.name}"] += 1
            self._synced(client, synced)

    def _joined(self, client: Client, answer: JoinAnswer) -> None:
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
        elif answer.error is ErrorCode.NONE:
            client.member_id, client.generation = answer.member_id, answer.generation
            client.joined = answer
        elif answer.error in FORGET or not answer.member_id:
            client.forget()

    def _synced(self, client: Client, answer: SyncAnswer) -> None:
        if answer.error is ErrorCode.NONE:
            client.assignment = answer.assignment
        elif answer.error in FORGET:
            client.forget()
        else:
            client.joined = None

    # Answers, checked as they are given

    def _wait(self, asked: Asked[Any]) -> Asked[Any]:
        self.waiting.append(asked)
        return asked

    def check_answer(self, asked: Asked[Any]) -> None:
        answer = asked.answer
        if isinstance(answer, SyncAnswer) and answer.error in STARTS_SESSION:
            member = self.driver.group.members.of_instance(asked.identity)
            self.contacts[member.member_id if member else asked.identity] = self.driver.now
        if answer.error is not ErrorCode.NONE:
            return
        if isinstance(answer, JoinAnswer):
            self._check_join(answer)
        elif isinstance(answer, SyncAnswer):
            self._check_sync(asked, answer)

    def _check_join(self, answer: JoinAnswer) -> None:
        self.contacts[answer.member_id] = self.driver.now
        if answer.members:
            assert answer.leader == answer.member_id
            assert answer.member_id in {row.member_id for row in answer.members}

    def _check_sync(self, asked: Asked[Any], answer: SyncAnswer) -> None:
        """Check that an assignment is in the log, and that no other client has its partitions."""
        rows = [
            row
            for metadata in self.driver.stored
            if metadata.generation == asked.generation
            for row in metadata.members
            if asked.identity in (row.instance_id, row.member_id)
        ]
        assert rows, "an assignment that was not committed"
        assert all(row.assignment == answer.assignment for row in rows), "it has changed"
        owners = self.owners.setdefault(asked.generation, {})
        for partition in answer.assignment:
            assert owners.setdefault(partition, asked.identity) == asked.identity, "two owners"
        self.seen["partitions owned"] += len(answer.assignment)

    # Time and the log

    def advance(self, seconds: float) -> None:
        """Let time pass in steps, in which writes time out and overdue requests are found."""
        end = self.driver.now + seconds
        while self.driver.now < end:
            self.driver.advance(min(0.5, end - self.driver.now))
            self.time_out_writes()
            self.check()

    def time_out_writes(self) -> None:
        flight = self.driver.in_flight
        known = {id(entry): self.written_at.get(id(entry), self.driver.now) for entry in flight}
        self.written_at = known
        for number, entry in enumerate(flight):
            if self.driver.now - known[id(entry)] >= COMMIT_TIMEOUT_S:
                self.driver.time_out(number)

    def failover(self, committed: int) -> None:
        """Elect another leader, which has the first `committed` of the writes in flight."""
        self.driver.failover(committed)
        self.last_generation = self.driver.group.generation
        self.contacts = dict.fromkeys(
            (member.member_id for member in self.driver.group.members), self.driver.now
        )
        self.seen["failover"] += 1

    # Invariants

    def check(self) -> None:
        self.waiting = [asked for asked in self.waiting if asked.waits]
        self.seen[self.driver.group.state.value] += 1
        self.check_generation()
        self.check_waiting()
        self.check_sessions()
        self.check_members()

    def check_generation(self) -> None:
        generation = self.driver.group.generation
        assert generation >= self.last_generation, "the generation decreases"
        if generation > self.last_generation:
            # A generation starts the sessions of all its members.
            for member in self.driver.group.members:
                self.contacts[member.member_id] = self.driver.now
        self.last_generation = generation
        assert generation >= max((row.generation for row in self.driver.stored), default=0)

    def check_waiting(self) -> None:
        for asked in self.waiting:
            waited_s = self.driver.now - asked.at
            assert waited_s <= LONGEST_WAIT_S + 0.5, f"a request waits for {waited_s} s"

    def check_sessions(self) -> None:
        now = self.driver.now
        current = {member.member_id for member in self.driver.group.members}
        self.contacts = {name: at for name, at in self.contacts.items() if name in current}
        for member in self.driver.group.members:
            longest_s = member.session_timeout_ms / 1000
            if member.joining is not None or member.syncing is not None:
                longest_s = NEW_MEMBER_JOIN_TIMEOUT_S
                self.contacts[member.member_id] = now
            silent_s = now - self.contacts.setdefault(member.member_id, now)
            assert silent_s <= longest_s + 0.5, f"{member.member_id} is silent for {silent_s} s"

    def check_members(self) -> None:
        members = self.driver.group.members
        rows = list(members)
        assert members.joining == sum(row.joining is not None for row in rows)
        assert (members.leader in members) if rows else members.leader is None
        pending = [*members._pending]
        assert members.size_bytes == sum(row.size_bytes for row in rows) + sum(
            PENDING_BYTES + len(name) for name in pending
        )
        support = Counter(name for row in rows for name in {each.name for each in row.protocols})
        assert members._support == support
        assert members._instances == {
            row.instance_id: row.member_id for row in rows if row.instance_id is not None
        }
        if self.driver.group.state in (State.COMPLETING_REBALANCE, State.STABLE):
            assert support[self.driver.group.protocol or ""] == len(rows) > 0
        if self.driver.group.state is State.EMPTY:
            assert not rows

    def settle(self) -> None:
        """Let all clients follow the protocol: the group becomes stable, with all partitions.

        They support all protocols from here on. The log has only the selected one, so after a
        failover a client that does not support it is refused, as by Kafka.
        """
        for client in self.clients:
            client.protocols = PROTOCOLS[0]
        self.driver.commits = True
        self.driver.commit_all()
        for _ in range(200):
            for client in self.clients:
                self.act(client)
            self.advance(0.5)
            for client in self.clients:
                self.collect(client)
            if self.is_settled():
                return
            self.assign_again()
        raise AssertionError(f"the group does not become stable: {self.driver.group.describe()}")

    def assign_again(self) -> None:
        """Let the leader join again, as if it noticed that the assignment is incomplete."""
        group = self.driver.group
        if group.state is not State.STABLE or any(each.assignment is None for each in self.clients):
            return
        for client in self.clients:
            if client.assignment is not None and client.member_id == group.members.leader:
                self.start_join(client)

    def is_settled(self) -> bool:
        group = self.driver.group
        owned = sorted(part for client in self.clients for part in client.assignment or b"")
        return (
            group.state is State.STABLE
            and owned == [*range(PARTITIONS)]
            and all(client.generation == group.generation for client in self.clients)
        )


Step = Callable[[World, Client], None]

# Steps of a client that does not follow the protocol.
BREACHES: dict[str, Step] = {
    "crash": World.crash,
    "leave": lambda world, client: world.leave(client, by_instance=False),
    "leave by instance": lambda world, client: world.leave(client, by_instance=True),
    "join again": lambda world, client: world.start_join(client),
    "join without id": lambda world, client: world.start_join(client, member_id=""),
    "join as a stranger": lambda world, client: world.start_join(client, member_id="stranger"),
    "sync without assignments": lambda world, client: world.start_sync(client, {}),
    "sync with everything": lambda world, client: world.start_sync(
        client, {each.member_id: bytes(range(PARTITIONS)) for each in [client]}
    ),
    "heartbeat": World.heartbeat,
}
