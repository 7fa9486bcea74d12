"""A classic group with its log, virtual time, and clients that remember their answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from dataplane.coordinators.group.classic_group import ClassicGroup
from dataplane.coordinators.group.group_metadata import GroupMetadata
from dataplane.coordinators.group.requests import (
    WAITING,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeaveMember,
    Protocol,
    SyncAnswer,
    SyncRequest,
)
from dataplane.coordinators.shard import CoordinatorRecord, Write
from wire.primitives.errors import ErrorCode

T = TypeVar("T")

SESSION_MS = 10_000
REBALANCE_MS = 60_000
WALL_MS = 1_700_000_000_000
RANGE = (Protocol("range", b"r"),)


@dataclass
class Asked(Generic[T]):
    """A request, with its answers: never more than one."""

    at: float = 0.0
    identity: str = ""  # the instance id, or else the member id
    generation: int = -1
    on_answer: "Callable[[Asked[Any]], None] | None" = None
    answers: list[T] = field(default_factory=list)

    def take(self, answer: T) -> None:
        self.answers.append(answer)
        assert len(self.answers) == 1, f"answered twice: {self.answers}"
        if self.on_answer is not None:
            self.on_answer(self)

    @property
    def answer(self) -> T:
        assert self.answers, "waits"
        return self.answers[0]

    @property
    def waits(self) -> bool:
        return not self.answers


def record_of(metadata: GroupMetadata) -> CoordinatorRecord:
    return CoordinatorRecord(b"group", b"metadata", metadata)


def metadata_of(record: CoordinatorRecord) -> GroupMetadata:
    assert isinstance(record.decoded_key, GroupMetadata)
    return record.decoded_key


class Driver:
    """Runs one group as a shard does. Writes are committed by `commit`, unless `commits`."""

    def __init__(self, *, commits: bool = True, **limits: int) -> None:
        self.limits = GroupLimits(**limits)
        self.now = 1000.0
        self.commits = commits
        self.group = ClassicGroup("g", self.limits, record_of)
        self.in_flight: list[tuple[Write[Any], Asked[Any] | None]] = []
        self.stored: list[GroupMetadata] = []
        self.on_answer: Callable[[Asked[Any]], None] | None = None
        self._ids = 0

    @property
    def now_ms(self) -> int:
        return WALL_MS + int(self.now * 1000)

    # Requests

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: tuple[Protocol, ...] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
        client_id: str = "client",
    ) -> Asked[JoinAnswer]:
        self._ids += 1
        request = JoinRequest(
            "g",
            member_id,
            instance_id,
            client_id,
            "/10.0.0.1",
            rebalance_ms,
            session_ms,
            protocol_type,
            protocols,
            f"{instance_id or client_id}-{self._ids}",
            version >= 4,
            version >= 9,
        )
        asked: Asked[JoinAnswer] = Asked(self.now, instance_id or member_id, -1, self.on_answer)
        return self._asked(asked, self.group.join(self.now, self.now_ms, request, asked.take))

    def new(self, **named: Any) -> Asked[JoinAnswer]:
        """Join as a client that gets a member id first, and joins with it."""
        first = self.join(**named).answer
        assert first.error is ErrorCode.MEMBER_ID_REQUIRED
        return self.join(first.member_id, **named)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
    ) -> Asked[SyncAnswer]:
        request = SyncRequest(
            "g",
            member_id,
            instance_id,
            generation,
            protocol_type,
            protocol,
            tuple((assignments or {}).items()),
        )
        identity = instance_id or member_id
        asked: Asked[SyncAnswer] = Asked(self.now, identity, generation, self.on_answer)
        return self._asked(asked, self.group.sync(self.now, self.now_ms, request, asked.take))

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance_id: str | None = None
    ) -> ErrorCode:
        generation = self.group.generation if generation is None else generation
        return self.group.heartbeat(self.now, generation, member_id, instance_id)

    def leave(self, *leaving: LeaveMember | str) -> Asked[LeaveAnswer]:
        rows = [LeaveMember(row) if isinstance(row, str) else row for row in leaving]
        asked: Asked[LeaveAnswer] = Asked(at=self.now)
        return self._asked(asked, self.group.leave(self.now, self.now_ms, rows))

    def _asked(self, asked: Asked[Any], result: Any) -> Any:
        if isinstance(result, Write):
            self.in_flight.append((result, asked))
            if self.commits:
                self.commit_all()
        elif result is not WAITING:
            asked.take(result)
        self._run_overdue()
        return asked

    # The log and time

    def commit(self) -> None:
        """Commit the oldest write."""
        write, asked = self.in_flight.pop(0)
        for record in write.records:
            self.stored.append(metadata_of(record))
            self.group.replay(self.stored[-1], self.now)
        if asked is not None and write.answer is not WAITING:
            asked.take(write.answer)

    def commit_all(self) -> None:
        while self.in_flight:
            self.commit()

    def fail(self, error: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> None:
        """Let the oldest write fail; its records are lost."""
        write, asked = self.in_flight.pop(0)
        if write.on_failed is not None:
            write.on_failed(error)
        if asked is not None and write.answer is not WAITING:
            asked.take(error)
        self._run_overdue()

    def advance(self, seconds: float) -> None:
        """Let time pass, and run the timers on their way as they become due."""
        end = self.now + seconds
        turns = 0
        while self.group.next_due <= end:
            turns = turns + 1 if self.group.next_due <= self.now else 0
            assert turns < 10, "a timer never rests"
            self.now = max(self.now, self.group.next_due)
            self._due()
        self.now = end

    def until_answered(self, *asked: Asked[Any]) -> None:
        """Let time pass until these requests are answered."""
        while any(one.waits for one in asked):
            self.now = max(self.now, self.group.next_due)
            self._due()

    def _run_overdue(self) -> None:
        while self.group.next_due < self.now - 1e-9:
            self._due()

    def _due(self) -> None:
        records = self.group.due(self.now, self.now_ms)
        if records:
            self.in_flight.append((Write(records, None), None))
            if self.commits:
                self.commit_all()

    def time_out(self, number: int) -> None:
        """Let a write fail whose records stay in the log, and may still be committed."""
        write, asked = self.in_flight[number]
        if write.on_failed is not None:
            write.on_failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.in_flight[number] = (Write(write.records, None), None)
        del asked
        self._run_overdue()

    def failover(self, committed: int = 0) -> Sequence[GroupMetadata]:
        """Replace the coordinator by one that has the committed records.

        The first `committed` writes in flight are committed by the new leader of the partition.
        """
        for write, _ in self.in_flight[:committed]:
            self.stored.extend(map(metadata_of, write.records))
        self.group.unload()
        self.in_flight.clear()
        self.group = ClassicGroup("g", self.limits, record_of)
        for metadata in self.stored:
            self.group.load(metadata)
        self.group.loaded(self.now, self.now_ms)
        return self.stored

    # Groups in a state

    def stable(self, size: int = 2, **named: Any) -> list[str]:
        """Make a stable group of `size` members; return their ids, the leader's first."""
        joins = [self.new(**named) for _ in range(size)]
        self.until_answered(*joins)
        return self._synced([asked.answer.member_id for asked in joins])

    def stable_static(self, *instances: str, **named: Any) -> list[str]:
        joins = [self.join(instance_id=name, **named) for name in instances]
        self.until_answered(*joins)
        return self._synced([asked.answer.member_id for asked in joins])

    def _synced(self, ids: list[str]) -> list[str]:
        leader = self.group.members.leader
        assert leader is not None
        ids.sort(key=lambda name: name != leader)
        self.sync(leader, self.group.generation, {name: name.encode() for name in ids})
        for name in ids[1:]:
            assert self.sync(name, self.group.generation).answer.error is ErrorCode.NONE
        return ids
