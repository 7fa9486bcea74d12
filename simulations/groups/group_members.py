"""Members of groups: they join, fetch, process, commit, and end in many ways.

    find the coordinator -> join -> sync -> read offsets -> fetch, process, commit, heartbeat ...
                             ^                                            |
                             +---------- a rebalance, or the id is invalid +

A membership ends by a LeaveGroup, by vanishing without one, or by a pause longer than the session;
then the member joins again, a static one with the same instance id. Two members may have the same
instance id: then one fences the other. A member commits only what it has processed.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum
from random import Random
from typing import Final

from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.groups.group_checkers import (
    AssignmentsAreCommitted,
    NothingIsSkipped,
    OneOwner,
    Owner,
)
from metaquorum.simulations.groups.group_clients import (
    PROTOCOL,
    PROTOCOL_TYPE,
    STATIC_SINCE,
    Group,
    GroupClient,
    Position,
    decoded_places,
    encoded_names,
    encoded_places,
    topic_names,
)
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.replication.replica_clients import ReplicaAdministrator, ReplicaProducer
from metaquorum.simulations.replication.replicas import Place
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.workloads.consumer import EARLIEST, LATEST
from metaquorum.wire.messages.heartbeat import HeartbeatRequest
from metaquorum.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from metaquorum.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from metaquorum.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

COMMITS: Final = 0.4  # share of turns with a commit
_LEAVE_MANY_SINCE: Final = 3
_PROTOCOL_SINCE: Final = 5  # version of SyncGroup
FINAL: Final = "events-final"  # a topic that never exists
MISTAKES: Final = 0.1  # share of turns with a request that breaks the protocol
_GONE: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
_ELSEWHERE: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class Ending(Enum):
    """How a membership ends."""

    LEAVE = "leave"
    VANISH = "vanish"
    PAUSE = "pause"
    RECONNECT = "reconnect"


class FencedError(Exception):
    """Raised if another process has the instance id of this one."""


class GroupMember(GroupClient):
    """One process that consumes with a group."""

    def __init__(
        self,
        cluster_state: ReplicatedClusterState,
        name: str,
        draw: Random,
        group: Group,
        instance_id: str | None,
        *,
        stays: bool,
    ) -> None:
        """Create the member; `stays`: it neither vanishes nor gives up at the end of the world."""
        super().__init__(cluster_state, name, draw)
        self._group = group
        self._instance_id = instance_id
        if instance_id is not None:
            group.static_ids.append(instance_id)
            for api, least in STATIC_SINCE.items():
                self._versions[api] = max(self._versions[api], least)
        self._stays = stays
        self._vanishes_at_the_end = not stays and draw.random() < 0.5
        # Clients whose records or changes must be over before the end of a partition is final.
        self.sources: Sequence[ReplicaProducer | ReplicaAdministrator] = ()
        self._member_id = ""
        self._earlier_ids: list[str] = []
        self._generation = -1
        self._is_leader = False
        # Topics when this member, as the leader, computed the assignment.
        self._known: dict[str, tuple[bytes, int]] | None = None
        self._joins_finally = False
        self._owned: list[tuple[str, int]] = []
        self._positions: dict[Place, int] = {}
        self._committed: dict[Place, int] = {}
        self._leaders: dict[Place, int] = {}
        self._heard_at = 0.0
        # Whether the assignments of others take longer than their sessions, if this is the leader.
        self.computes_slowly = False
        # Whether fetches from the coordinator use the connection of the heartbeats.
        self.shares_connection = False
        self._own: tuple[int, ClientConnection] | None = None  # connection to the coordinator
        group.active += 1

    # Life

    async def run(self, runtime: Runtime) -> None:
        state = self.cluster_state
        while not state.closing and not self._is_finished():
            try:
                await self._live(runtime)
            except BROKEN as error:
                self.say(f"lost: {error!r}")
            except FencedError:
                self.say(f"is fenced, as {self._instance_id}")
                state.world.count("members fenced")
                self._forget()
                if state.calm and not self._stays:
                    break
                await sleep(runtime.clock, self._draw.uniform(0.3, 1.5))
            await sleep(runtime.clock, RETRY_S * (1 + self._draw.random()))
        self._group.is_final |= self._stays
        self._group.active -= 1
        if not self._group.active:
            state.checker(NothingIsSkipped).finals(self._group.group_id)
        self.done = True

    def _is_finished(self) -> bool:
        if not self._are_sources_done:
            return False
        if self.log.is_over(self._group.group_id):
            return True
        if self._vanishes_at_the_end:
            return self._group.is_final
        return all(
            place in self._group.settled or self.is_over(name, place)
            for name, place in self.places()
        )

    def _forget(self) -> None:
        """Forget the member id: the next JoinGroup is that of a new member."""
        if self._member_id:
            self._earlier_ids.append(self._member_id)
        self._member_id, self._generation = "", -1

    @property
    def _position(self) -> Position:
        return Position(self._member_id, self._generation, self._instance_id)

    async def _live(self, runtime: Runtime) -> None:
        worker_id = await self.coordinator(runtime, self._group.group_id)
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(self.connected(runtime, worker_id))
            self._own = worker_id, connection
            while not self.cluster_state.closing and not self._is_finished():
                if not await self._join(runtime, connection):
                    continue
                if not await self._compute(runtime, connection, worker_id):
                    continue
                if not await self._sync(runtime, connection, worker_id):
                    continue
                ending = await self._consume(runtime, connection, worker_id)
                if ending is not None:
                    await self._end(runtime, connection, ending)
                    return
            if self._member_id and not self._vanishes_at_the_end:
                await self._end(runtime, connection, Ending.LEAVE)

    async def _end(self, runtime: Runtime, connection: ClientConnection, ending: Ending) -> None:
        self.cluster_state.world.count(f"members that {ending.value}")
        self.say(f"ends: {ending.value}")
        if ending is Ending.LEAVE:
            await self._leave(connection)
            self._forget()
        elif ending is Ending.VANISH:
            self._forget()
        elif ending is Ending.PAUSE:
            await sleep(runtime.clock, self._group.session_ms / 1000 * self._draw.uniform(0.8, 2))

    # Joining

    async def _join(self, runtime: Runtime, connection: ClientConnection) -> bool:
        """Join the group; return whether this is a member of a generation now."""
        names = [*topic_names(), *[FINAL] * self._joins_finally]
        message = JoinGroupRequest(
            group_id=self._group.group_id,
            session_timeout_ms=self._group.session_ms,
            rebalance_timeout_ms=self._group.rebalance_ms,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=PROTOCOL, metadata=encoded_names(names))],
        )
        response: JoinGroupResponse = await connection.call(ApiKey.JOIN_GROUP, message)
        code = ErrorCode(response.error_code)
        self.cluster_state.world.count(f"join: {code.name}")
        self.say(f"joins as {self._member_id!r}: {code.name}, {response.generation_id}")
        if code is not ErrorCode.NONE:
            if code is ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = response.member_id
                return False
            await self._refused(runtime, code)
            return False
        if self._member_id not in ("", response.member_id):
            self._earlier_ids.append(self._member_id)
        self._member_id, self._generation = response.member_id, response.generation_id
        self._is_leader = response.leader == self._member_id
        self._heard_at = self.cluster_state.world.now
        self._assign(response)
        return True

    def _assign(self, response: JoinGroupResponse) -> None:
        """Compute the assignment of all members, if this is the leader."""
        self._assignments: dict[str, list[tuple[str, int]]] = {}
        self._known = None
        if not self._is_leader or response.skip_assignment or not response.members:
            return
        self._known = self._topics()
        ids = [member.member_id for member in response.members]
        self._assignments = {member_id: [] for member_id in ids}
        places = [(name, n) for name, (_, count) in self._known.items() for n in range(count)]
        for number, place in enumerate(places):
            self._assignments[ids[number % len(ids)]].append(place)

    async def _compute(
        self, runtime: Runtime, connection: ClientConnection, worker_id: int
    ) -> bool:
        """Let the SyncGroups of other members wait; return whether the generation continues."""
        least_s, most_s = self._group.session_ms / 1000, self._group.rebalance_ms / 1000
        if not self.computes_slowly or len(self._assignments) < 2 or self.cluster_state.calm:
            return True
        self.cluster_state.world.count("slow assignments")
        ends_at = self.cluster_state.world.now + self._draw.uniform(least_s, 0.8 * most_s)
        while self.cluster_state.world.now < ends_at:
            await sleep(runtime.clock, least_s / 4)
            if not await self._heartbeat(connection, worker_id):
                return False
        return True

    def _topics(self) -> dict[str, tuple[bytes, int]]:
        names = topic_names()
        lasting = self.cluster_state.topic_outcomes.lasting
        return {name: lasting[name] for name in sorted(lasting) if name in names}

    async def _sync(self, runtime: Runtime, connection: ClientConnection, worker_id: int) -> bool:
        """Send or receive the assignment; return whether there is one."""
        if self._draw.random() < 0.02:
            return False  # joins again instead
        before = self.log.role(self._group.group_id, worker_id)
        response = await connection.call(
            ApiKey.SYNC_GROUP, self._sync_request(connection, self._generation)
        )
        code = ErrorCode(response.error_code)
        self.cluster_state.world.count(f"sync: {code.name}")
        if code is not ErrorCode.NONE:
            await self._refused(runtime, code)
            return False
        self.accepted(self._group.group_id, before)
        self._shown(self._generation, bytes(response.assignment))
        self._heard_at = self.cluster_state.world.now
        self._owned = decoded_places(bytes(response.assignment))
        self.say(f"owns {self._owned} in generation {self._generation}")
        self._positions.clear()
        self._committed.clear()
        self._group.is_final |= self._joins_finally
        return True

    def _sync_request(self, connection: ClientConnection, generation: int) -> SyncGroupRequest:
        has_protocol = connection.version(ApiKey.SYNC_GROUP) >= _PROTOCOL_SINCE
        return SyncGroupRequest(
            group_id=self._group.group_id,
            generation_id=generation,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE if has_protocol else None,
            protocol_name=PROTOCOL if has_protocol else None,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=encoded_places(places))
                for member_id, places in self._assignments.items()
            ],
        )

    def _shown(self, generation: int, assignment: bytes) -> None:
        state, group_id = self.cluster_state, self._group.group_id
        checker = state.checker(AssignmentsAreCommitted)
        written = checker.shown(group_id, generation, self._member_id, assignment)
        if written is not None:
            owner = Owner(self._instance_id or self._member_id, assignment, written)
            state.checker(OneOwner).shown(group_id, owner, decoded_places(assignment))
        state.world.count("assignments shown", assignment != b"")

    async def _refused(self, runtime: Runtime, code: ErrorCode) -> None:
        """Forget what an error makes invalid. Raises EOFError, or FencedError."""
        if code is ErrorCode.FENCED_INSTANCE_ID:
            raise FencedError
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget()
        elif code in _ELSEWHERE:
            raise EOFError(code.name)
        await sleep(runtime.clock, RETRY_S * self._draw.random())

    async def _leave(self, connection: ClientConnection) -> None:
        identity = MemberIdentity(member_id=self._member_id, group_instance_id=self._instance_id)
        is_many = connection.version(ApiKey.LEAVE_GROUP) >= _LEAVE_MANY_SINCE
        message = LeaveGroupRequest(
            group_id=self._group.group_id,
            member_id="" if is_many else self._member_id,
            members=[identity] if is_many else [],
        )
        response = await connection.call(ApiKey.LEAVE_GROUP, message)
        self.cluster_state.world.count("members left", response.error_code == 0)

    # Consuming

    async def _consume(
        self, runtime: Runtime, connection: ClientConnection, worker_id: int
    ) -> Ending | None:
        """Consume until a rebalance (None) or the drawn end of the membership."""
        state, draw = self.cluster_state, self._draw
        turns = draw.choice([5, 20, 60])
        ending: Ending | None = draw.choice([*Ending, Ending.RECONNECT, None, None])
        while not state.closing and not self._is_finished():
            turns -= 1
            if turns < 0 and ending is not None and not state.calm:
                return ending
            if self._must_rejoin():
                return None
            if self._is_heartbeat_due() and not await self._heartbeat(connection, worker_id):
                return None
            if draw.random() < MISTAKES and not state.calm:
                await self._break_protocol(connection, worker_id)
            places = self._places()
            if places:
                await self._read_positions(connection, worker_id, places)
                try:
                    await self._fetch_one(runtime, *draw.choice(places))
                except BROKEN:
                    if connection.in_flight:
                        raise
                commits = state.calm or draw.random() < COMMITS
                if commits and not await self._commit(connection, worker_id, places):
                    return None
            await sleep(runtime.clock, 0.02 + draw.random() * state.settings.think_s)
        if not self._vanishes_at_the_end and not state.closing:
            return Ending.LEAVE
        return None

    def _must_rejoin(self) -> bool:
        """Return whether this is the leader, and the topics have changed.

        A static member that returns may be the leader without knowing it (KIP-345, KIP-814); then
        no member looks at the topics. One member therefore changes its subscription in the end.
        """
        if self._stays and not self._joins_finally and self._are_sources_done:
            self._joins_finally = True
            return True
        return self._known is not None and self._known != self._topics()

    @property
    def _are_sources_done(self) -> bool:
        return self.cluster_state.calm and all(source.done for source in self.sources)

    def _is_heartbeat_due(self) -> bool:
        due_s = self._group.session_ms / 1000 / 4
        return self.cluster_state.world.now - self._heard_at > due_s

    async def _heartbeat(self, connection: ClientConnection, worker_id: int) -> bool:
        """Send a heartbeat; return whether the generation continues."""
        before = self.log.role(self._group.group_id, worker_id)
        asked_at = self.cluster_state.world.now
        message = HeartbeatRequest(
            group_id=self._group.group_id,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
        )
        response = await connection.call(ApiKey.HEARTBEAT, message)
        code = ErrorCode(response.error_code)
        self.cluster_state.world.count(f"heartbeat: {code.name}")
        if code is ErrorCode.NONE:
            self.accepted(self._group.group_id, before)
            self._heard_at = asked_at
            return True
        return self._goes_on(code)

    def _goes_on(self, code: ErrorCode) -> bool:
        """Return False after an error that ends the generation. Raises EOFError, or FencedError."""
        self.say(f"is answered {code.name} in generation {self._generation}")
        if code is ErrorCode.FENCED_INSTANCE_ID:
            raise FencedError
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget()
        elif code in _ELSEWHERE:
            raise EOFError(code.name)
        return code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _places(self) -> list[tuple[str, Place]]:
        """Return the owned partitions of topics that should exist and have a leader."""
        owned = set(self._owned)
        return [
            (name, place)
            for name, place in self.places()
            if (name, place.partition) in owned and not self.is_over(name, place)
        ]

    async def _read_positions(
        self,
        connection: ClientConnection,
        worker_id: int,
        places: list[tuple[str, Place]],
    ) -> None:
        """Read the committed offsets of partitions without a position; begin at the start."""
        missing = [at for at in places if at[1] not in self._positions]
        if not missing:
            return
        found = await self.committed(connection, worker_id, self._group.group_id, missing)
        for at in missing:
            self._positions[at[1]] = found.get(at, 0)
            self._committed[at[1]] = found.get(at, 0)
        self.say(f"continues at {[(str(at[1]), self._positions[at[1]]) for at in missing]}")

    @asynccontextmanager
    async def _fetching(self, runtime: Runtime, leader: int) -> AsyncIterator[ClientConnection]:
        """Hold a connection for fetches from the leader. Raises an error of `BROKEN`."""
        if self.shares_connection and self._own is not None and self._own[0] == leader:
            # For the checkers of quotas: throttle times of other connections do not apply.
            self.worker_id, self.connections = leader, self.connections + 1
            yield self._own[1]
            return
        async with self.connected(runtime, leader) as connection:
            yield connection

    async def _fetch_one(self, runtime: Runtime, name: str, place: Place) -> None:
        """Fetch one partition and process the records; note whether its end is reached."""
        is_final = self._are_sources_done and not self._vanishes_at_the_end
        try:
            leader = self._leaders.get(place)
            if leader is None:
                leader = self._leaders[place] = await self.leader(runtime, name, place)
            async with self._fetching(runtime, leader) as connection:
                for _ in range(3):
                    position = self._positions[place]
                    wait_ms = self._draw.choice([0, 20])
                    read = await self.fetch(connection, name, place, position, wait_ms)
                    if read.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                        start = await self.list_offset(connection, name, place.partition, EARLIEST)
                        self._positions[place] = start
                        self.say(f"{name}/{place}: {position} is out of range, begins at {start}")
                        continue
                    self._process(place, [value for _, value in read.records])
                    self._positions[place] = read.next_offset
                    if read.next_offset == position:
                        break
                if is_final and place == self._current(name, place):
                    end = await self.list_offset(connection, name, place.partition, LATEST)
                    is_at_end = self._positions[place] >= end
                    if is_at_end and self._committed[place] == self._positions[place]:
                        self._group.settled.add(place)
        except BROKEN:
            self._leaders.pop(place, None)
            raise

    def _current(self, name: str, place: Place) -> Place | None:
        known = self.cluster_state.topic_outcomes.lasting.get(name)
        return None if known is None else Place(known[0], place.partition)

    def _process(self, place: Place, values: list[bytes]) -> None:
        checker = self.cluster_state.checker(NothingIsSkipped)
        checker.of(self._group.group_id, place).values.update(values)
        self.cluster_state.world.count("records processed", len(values))

    async def _commit(
        self,
        connection: ClientConnection,
        worker_id: int,
        places: list[tuple[str, Place]],
    ) -> bool:
        """Commit the positions; return whether the generation continues."""
        offsets = {
            at: self._positions[at[1]]
            for at in places
            if self._positions[at[1]] != self._committed[at[1]]
        }
        if not offsets:
            return True
        outcome = await self.commit(
            connection, worker_id, self._group.group_id, self._position, offsets
        )
        goes_on = True
        for at, code in outcome.items():
            if code is ErrorCode.NONE:
                self._committed[at[1]] = offsets[at]
                self._heard_at = self.cluster_state.world.now
            elif code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                continue
            elif code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                raise EOFError(code.name)
            else:
                goes_on = self._goes_on(code)
        return goes_on

    # Mistakes

    async def _break_protocol(self, connection: ClientConnection, worker_id: int) -> None:
        """Send a request that the coordinator must refuse; the checkers see if it takes effect."""
        draw, world = self._draw, self.cluster_state.world
        place = draw.choice(self._places() or self.places() or [None])
        if place is None:
            return
        kind = draw.choice(["generation", "member", "instance", "alone", "sync", "heartbeat"])
        world.count(f"mistake: {kind}")
        own = self._position
        if kind == "sync":
            await self._sync_wrongly(connection, draw.choice([-1, 1, 7]))
            return
        if kind == "heartbeat":
            message = HeartbeatRequest(
                group_id=self._group.group_id,
                generation_id=self._generation + draw.choice([-1, 1]),
                member_id=draw.choice([self._member_id, "nobody"]),
            )
            await connection.call(ApiKey.HEARTBEAT, message)
            return
        has_instances = (
            connection.version(ApiKey.OFFSET_COMMIT) >= STATIC_SINCE[ApiKey.OFFSET_COMMIT]
        )
        earlier = draw.choice(self._earlier_ids or ["nobody"])
        instance_id = (self._instance_id or "stranger") if has_instances else None
        position = {
            "generation": own._replace(generation=own.generation + draw.choice([-1, 1])),
            "member": Position(earlier, own.generation),
            "instance": Position(earlier, own.generation, instance_id),
            "alone": Position(),
        }[kind]
        await self.commit(connection, worker_id, self._group.group_id, position, {place: 0})

    async def _sync_wrongly(self, connection: ClientConnection, by: int) -> None:
        """Send a SyncGroup of another generation, with all partitions for this member."""
        generation = self._generation + by
        request = self._sync_request(connection, generation)
        places = [(name, place.partition) for name, place in self.places()]
        request.assignments = [
            SyncGroupRequestAssignment(member_id=self._member_id, assignment=encoded_places(places))
        ]
        response = await connection.call(ApiKey.SYNC_GROUP, request)
        if response.error_code == ErrorCode.NONE:
            self._shown(generation, bytes(response.assignment))
