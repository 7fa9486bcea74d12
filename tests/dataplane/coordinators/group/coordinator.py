"""A coordinator of one shard for tests: a log in memory, which the test commits."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, count
from typing import Any

from metaquorum.dataplane.coordinators.client_budget import ClientBudget
from metaquorum.dataplane.coordinators.group.group_shard import (
    CommitRequest,
    GroupConfigs,
    GroupShard,
    OffsetToCommit,
)
from metaquorum.dataplane.coordinators.group.requests import (
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    Protocol,
    SyncAnswer,
    SyncRequest,
)
from metaquorum.dataplane.coordinators.shard import CoordinatorRecord, Write
from metaquorum.dataplane.scheduling.time_slices import at_once
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.types import ZERO_UUID

GROUP = "g"
TOPIC_ID = bytes(15) + b"\1"
CONFIGS = GroupConfigs()


class Answers(list[Any]):
    """The answers to one request, at most one."""

    def __call__(self, answer: Any) -> None:
        assert not self, "a request is answered twice"
        self.append(answer)

    @property
    def one(self) -> Any:
        (answer,) = self
        return answer


class Coordinator:
    def __init__(self, configs: GroupConfigs | None = None) -> None:
        self.configs = configs or GroupConfigs()
        self.log: list[CoordinatorRecord] = []  # committed
        self.uncommitted: deque[tuple[list[CoordinatorRecord], Callable[[], object]]] = deque()
        self.commits_at_once = True
        self._appends = 0
        self.now = 100.0
        self.topic_ids: dict[str, bytes] = {"t": TOPIC_ID}
        self._ids = count(1)
        self.budget = ClientBudget("group.memory.max.bytes", lambda: 1 << 20)
        self.offsets_budget = ClientBudget("offsets.memory.max.bytes", lambda: 1 << 30)
        self.shard = self.new_shard()
        at_once(self.shard.restore(self.now))
        self.shard.loaded(self.now, self.now_ms)

    def new_shard(self) -> GroupShard:
        return GroupShard(
            0,
            self.configs,
            self.budget,
            self.offsets_budget,
            lambda topic: self.topic_ids.get(topic, ZERO_UUID),
            lambda: self.now_ms,
            lambda: str(next(self._ids)),
        )

    @property
    def now_ms(self) -> int:
        return round(self.now * 1000)

    def _take(self, outcome: Any, answers: Answers) -> Answers:
        """Do what the runtime does with the outcome of an operation."""
        if isinstance(outcome, Write):
            answer = outcome.answer
            self._append(
                list(outcome.records), lambda: answers(answer) if answer is not None else None
            )
        elif outcome is not None:
            answers(outcome)
        return answers

    def do(self, outcome: Any) -> Answers:
        return self._take(outcome, Answers())

    def _append(self, records: list[CoordinatorRecord], done: Callable[[], object]) -> None:
        self._appends += 1
        if self.commits_at_once and not self.uncommitted and self._appends % 2:
            # As with a single replica. It must not differ from the other way.
            self.log += records
            self.shard.replay_appended(records, lambda: self.now)
            done()
            return
        self.shard.appended(records)
        self.uncommitted.append((records, done))
        if self.commits_at_once:
            self.commit_all()

    def commit_all(self) -> None:
        while self.uncommitted:
            self.commit_one()

    def commit_one(self) -> None:
        """Commit the oldest write that is not committed."""
        records, done = self.uncommitted.popleft()
        for record in records:
            self.log.append(record)
            self.shard.replay(record, self.now)
        done()

    def wait(self, seconds: float) -> None:
        """Let time pass, with all timeouts in their order."""
        end = self.now + seconds
        while self.shard.next_due <= end:
            self.now = max(self.now, self.shard.next_due)
            records = self.shard.due(self.now, self.now_ms)
            if records:
                self._append(records, lambda: None)
        self.now = end

    def fail_over(self) -> None:
        """Let another worker load the shard; what is not committed is lost."""
        at_once(self.shard.unload())
        self.uncommitted.clear()
        self.budget = ClientBudget("group.memory.max.bytes", lambda: 1 << 20)
        self.offsets_budget = ClientBudget("offsets.memory.max.bytes", lambda: 1 << 30)
        self.shard = self.new_shard()
        for record in self.log:
            self.shard.replay(CoordinatorRecord(record.key, record.value), self.now)
        at_once(self.shard.restore(self.now))
        self.shard.loaded(self.now, self.now_ms)

    # Requests

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", b"s"),),
        protocol_type: str = "consumer",
        session_s: float = 10,
        rebalance_s: float = 60,
        needs_member_id: bool = False,
        **more: Any,
    ) -> Answers:
        request = JoinRequest(
            GROUP,
            member_id,
            instance_id,
            "client",
            "/127.0.0.1",
            round(rebalance_s * 1000),
            round(session_s * 1000),
            protocol_type,
            tuple(Protocol(name, metadata) for name, metadata in protocols),
            needs_member_id=needs_member_id,
            **more,
        )
        answers = Answers()
        return self._take(self.shard.join(self.now, request, answers), answers)

    def sync(
        self,
        joined: JoinAnswer,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        **more: Any,
    ) -> Answers:
        values = {
            "member_id": joined.member_id,
            "generation": joined.generation,
            "protocol_type": joined.protocol_type,
            "protocol": joined.protocol,
            "assignments": assignments or {},
        }
        request = SyncRequest(group_id=GROUP, instance_id=instance_id, **(values | more))
        answers = Answers()
        return self._take(self.shard.sync(self.now, request, answers), answers)

    def heartbeat(
        self, joined: JoinAnswer, *, instance_id: str | None = None, generation: int | None = None
    ) -> ErrorCode:
        return self.shard.heartbeat(
            self.now,
            GROUP,
            joined.member_id,
            instance_id,
            joined.generation if generation is None else generation,
        )

    def leave(self, member_id: str, instance_id: str | None = None) -> ErrorCode:
        leaving = LeavingMember(member_id, instance_id)
        code: ErrorCode = self.do(self.shard.leave(self.now, GROUP, [leaving])).one[0]
        return code

    def leave_without_answer(self, member_id: str) -> None:
        """Leave the group; the answer waits until the records are committed."""
        leaving = LeavingMember(member_id, None)
        assert not self.do(self.shard.leave(self.now, GROUP, [leaving]))

    def commit(
        self,
        offset: int = 5,
        *,
        topic: str = "t",
        partition: int = 0,
        member: JoinAnswer | None = None,
        generation: int | None = None,
        metadata: str = "",
        retention_ms: int = -1,
        group_id: str = GROUP,
        instance_id: str | None = None,
    ) -> Answers:
        if generation is None:
            generation = -1 if member is None else member.generation
        row = OffsetToCommit(
            topic, self.topic_ids.get(topic, bytes(16)), partition, offset, 7, metadata
        )
        request = CommitRequest(
            group_id,
            member.member_id if member else "",
            instance_id,
            generation,
            [row],
            retention_ms,
        )
        answers = Answers()
        outcome = self.shard.commit(self.now, self.now_ms, request)
        if isinstance(outcome, ErrorCode):
            outcome = [outcome]
        return self._take(outcome, answers)

    def committed(self, topic: str = "t", partition: int = 0, group_id: str = GROUP) -> int | None:
        found = self.shard.offsets.fetch(
            group_id, topic, partition, self.topic_ids.get(topic, ZERO_UUID)
        )
        return None if found is None else found.offset

    # Whole steps

    @property
    def group(self) -> Any:
        return self.shard.groups[GROUP]

    @property
    def group_ids(self) -> list[str]:
        return list(chain.from_iterable(self.shard.group_id_pieces()))

    @property
    def state(self) -> str:
        text: str = self.group.state.value
        return text

    def stable(self, members: int = 1, **join: Any) -> list[JoinAnswer]:
        """Bring `members` new members into a stable generation; return their joins."""
        waiting = [self.join(**join) for _ in range(members)]
        self.wait(3 if members == 1 else 6)  # later ones extend the initial delay
        joined: list[JoinAnswer] = [answers.one for answers in waiting]
        self.assign(joined)
        return joined

    def assign(self, joined: Sequence[JoinAnswer]) -> list[SyncAnswer]:
        """Send all SyncGroups; each member gets its own id as its assignment."""
        assignments = {each.member_id: each.member_id.encode() for each in joined}
        answers = [
            self.sync(each, assignments if each.leader == each.member_id else None)
            for each in joined
        ]
        assert self.state == "Stable"
        synced: list[SyncAnswer] = [each.one for each in answers]
        return synced
