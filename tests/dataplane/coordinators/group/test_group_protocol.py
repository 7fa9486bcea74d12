"""The group protocol, with clients that follow it, break it, vanish and come back.

In every case, a request is answered once, and in bounded time; an assignment is the one that the
leader of that generation gave to that member, and its record was committed before; generations only
grow; and a member that is silent is removed.
"""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metaquorum.dataplane.coordinators.group import rebalancing
from metaquorum.dataplane.coordinators.group.group_shard import GroupConfigs, group_bytes
from metaquorum.dataplane.coordinators.group.rebalancing import GroupLimits
from metaquorum.dataplane.coordinators.group.record_formats import (
    GroupMetadataValue,
    decode_group_value,
)
from metaquorum.dataplane.coordinators.group.requests import JoinAnswer, LeavingMember, SyncAnswer
from metaquorum.dataplane.coordinators.group.sessions import pending_bytes
from metaquorum.wire.primitives.errors import ErrorCode
from tests.dataplane.coordinators.group.coordinator import Answers, Coordinator
from tests.examples import examples

SESSION_S = 10.0
REBALANCE_S = 30.0
DELAY_S = 3.0
# A rebalance may begin again while a request waits, but then the request is answered at once.
LONGEST_WAIT_S = 2 * REBALANCE_S + SESSION_S + DELAY_S
CLIENTS = st.integers(0, 3)


@dataclass(slots=True)
class Waiting:
    """A request of a client that may wait; `generation` is that of a SyncGroup."""

    answers: Answers
    since: float
    member_id: str
    generation: int = -1


@dataclass(slots=True)
class Client:
    instance_id: str | None
    joined: JoinAnswer = field(default_factory=JoinAnswer)
    join: Waiting | None = None
    sync: Waiting | None = None
    heard_at: float = 0.0


class GroupProtocol(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        limits = GroupLimits(initial_rebalance_delay_s=DELAY_S, max_pending=10)
        self.coordinator = Coordinator(GroupConfigs(limits))
        self.clients = [Client("static" if number == 3 else None) for number in range(4)]
        self.assigned: dict[tuple[int, str], bytes] = {}  # by generation and member id
        self.generation = 0
        self.tokens = 0

    # Actions of clients

    @rule(number=CLIENTS, protocol=st.sampled_from(["range", "range", "both"]))
    def joins(self, number: int, protocol: str) -> None:
        client = self.clients[number]
        if client.join is not None or client.sync is not None:
            return
        protocols = [("range", b"r")] + ([("sticky", b"s")] if protocol == "both" else [])
        answers = self.coordinator.join(
            client.joined.member_id,
            instance_id=client.instance_id,
            session_s=SESSION_S,
            rebalance_s=REBALANCE_S,
            protocols=protocols,
            needs_member_id=number != 0,
        )
        client.heard_at = self.coordinator.now
        client.join = Waiting(answers, self.coordinator.now, client.joined.member_id)
        self.read()

    @rule(number=CLIENTS)
    def another_process_takes_the_place(self, number: int) -> None:
        """Forget the member id, without leaving; a static member replaces itself."""
        client = self.clients[number]
        self.vanishes(number)
        client.joined = JoinAnswer()

    @rule(number=CLIENTS)
    def syncs(self, number: int) -> None:
        client, coordinator = self.clients[number], self.coordinator
        if client.join is not None or client.sync is not None or client.joined.generation < 0:
            return
        joined = client.joined
        assignments: dict[str, bytes] = {}
        if joined.leader == joined.member_id and not joined.skip_assignment:
            for member in joined.members:
                self.tokens += 1
                assignments[member.member_id] = b"%d" % self.tokens
        is_first = (
            "g" in coordinator.shard.groups
            and coordinator.state == "CompletingRebalance"
            and not coordinator.group.rebalancing._is_assigned
            and coordinator.group.members.leader == joined.member_id
            and coordinator.group.generation == joined.generation
        )
        if is_first:
            for member_id, token in assignments.items():
                self.assigned[joined.generation, member_id] = token
        answers = coordinator.sync(joined, assignments, instance_id=client.instance_id)
        client.heard_at = coordinator.now
        client.sync = Waiting(answers, coordinator.now, joined.member_id, joined.generation)
        self.read()

    @rule(number=CLIENTS)
    def heartbeats(self, number: int) -> None:
        client = self.clients[number]
        if client.joined.generation < 0:
            return
        code = self.coordinator.heartbeat(client.joined, instance_id=client.instance_id)
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            client.heard_at = self.coordinator.now
        elif code is not ErrorCode.ILLEGAL_GENERATION:
            assert code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID), code
            client.joined = JoinAnswer()

    @rule(number=CLIENTS)
    def leaves(self, number: int) -> None:
        client = self.clients[number]
        if client.joined.member_id:
            leaving = LeavingMember(client.joined.member_id, client.instance_id)
            self.coordinator.do(self.coordinator.shard.leave(self.coordinator.now, "g", [leaving]))
            client.joined = JoinAnswer()
            self.read()

    @rule(number=CLIENTS)
    def vanishes(self, number: int) -> None:
        """Close the connection: waiting requests are dropped."""
        client, coordinator = self.clients[number], self.coordinator
        for waiting in (client.join, client.sync):
            if waiting is not None and not waiting.answers and waiting.member_id:
                drop = (
                    coordinator.shard.drop_join
                    if waiting is client.join
                    else coordinator.shard.drop_sync
                )
                drop(coordinator.now, "g", waiting.member_id)
        client.join = client.sync = None

    # Actions of the coordinator, and time

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 9.0, 11.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.coordinator.wait(seconds)
        self.read()

    @rule()
    def commits_wait(self) -> None:
        self.coordinator.commits_at_once = False

    @rule()
    def commits_arrive(self) -> None:
        self.coordinator.commits_at_once = True
        self.coordinator.commit_all()
        self.read()

    @precondition(lambda self: not self.coordinator.uncommitted)
    @rule()
    def another_coordinator_takes_over(self) -> None:
        self.coordinator.fail_over()
        self.read()
        for client in self.clients:
            client.heard_at = self.coordinator.now  # sessions begin again
        if "g" in self.coordinator.shard.groups:
            # Generations without a record are unknown to it.
            self.generation = self.coordinator.group.generation
        else:
            self.generation = 0
        self.assigned = {
            key: token for key, token in self.assigned.items() if key[0] <= self.generation
        }

    def read(self) -> None:
        """Let the clients read their answers."""
        for client in self.clients:
            if client.join is not None and client.join.answers:
                self.read_join(client, client.join.answers.one)
                client.join = None
            if client.sync is not None and client.sync.answers:
                self.read_sync(client.sync, client.sync.answers.one)
                client.sync = None

    def read_join(self, client: Client, answer: JoinAnswer) -> None:
        if answer.code is ErrorCode.NONE:
            assert answer.generation >= self.generation
            self.generation = answer.generation
            client.joined = answer
            client.heard_at = self.coordinator.now
        elif answer.code is ErrorCode.MEMBER_ID_REQUIRED:
            client.joined = JoinAnswer(member_id=answer.member_id)
        elif answer.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.joined = JoinAnswer()

    def read_sync(self, waiting: Waiting, answer: SyncAnswer) -> None:
        if answer.code is not ErrorCode.NONE:
            return
        recorded = self.recorded(waiting.generation)
        assert recorded is not None, "an assignment is shown before its record is committed"
        expected = self.assigned.get((waiting.generation, waiting.member_id))
        if expected is not None:
            assert answer.assignment == expected

    def recorded(self, generation: int) -> GroupMetadataValue | None:
        for record in reversed(self.coordinator.log):
            if record.key[:2] == b"\0\2" and record.value is not None:
                metadata = decode_group_value(record.value)
                if metadata.generation == generation and metadata.members:
                    return metadata
        return None

    # Invariants

    @invariant()
    def requests_do_not_wait_for_ever(self) -> None:
        if not self.coordinator.commits_at_once:
            return
        for client in self.clients:
            for waiting in (client.join, client.sync):
                if waiting is not None:
                    assert self.coordinator.now - waiting.since <= LONGEST_WAIT_S

    @invariant()
    def silent_members_are_removed(self) -> None:
        group = self.coordinator.shard.groups.get("g")
        if group is None:
            return
        for member in group.members:
            if not member.is_waiting:
                assert self.coordinator.now <= member.heard_at + SESSION_S + 1e-6

    @invariant()
    def counts_agree(self) -> None:
        group = self.coordinator.shard.groups.get("g")
        if group is None:
            return
        members = group.members
        assert members.joined_count == sum(each.join is not None for each in members)
        used_bytes = group_bytes("g") + sum(map(pending_bytes, group.pending))
        used_bytes += sum(each.size_bytes for each in members)
        used_bytes += sum(each.size_bytes for each in group.history.rebalances)
        assert self.coordinator.budget.used_bytes == used_bytes
        assert set(members.static_ids.values()) <= members.by_id.keys()
        assert (members.leader in members.by_id) == bool(len(members))
        if group.state.value == "Empty":
            assert not len(members)
        elif not len(members):
            assert group.state.value == "PreparingRebalance"  # ends at once, or with the pending
        assert group.sessions._sessions.keys() == members.by_id.keys()
        assert group.rebalancing._unsynced <= members.by_id.keys()


class GroupProtocolInPieces(GroupProtocol):
    """One member is answered at a time, as 256 of a large group are: all may happen in between."""

    def __init__(self) -> None:
        self._at_once = rebalancing.ANSWERED_AT_ONCE
        rebalancing.ANSWERED_AT_ONCE = 1  # type: ignore[misc]
        super().__init__()

    def teardown(self) -> None:
        rebalancing.ANSWERED_AT_ONCE = self._at_once  # type: ignore[misc]


TestGroupProtocol = GroupProtocol.TestCase
TestGroupProtocol.settings = examples(200, stateful_step_count=60)
TestGroupProtocolInPieces = GroupProtocolInPieces.TestCase
TestGroupProtocolInPieces.settings = TestGroupProtocol.settings
