"""Chains: consume, transform and produce, with the committed offsets in the transaction (KIP-447).

    join -> read the committed offsets -> fetch -> produce outputs, commit offsets -> EndTxn

Each output names its input. A member may crash between any two requests; its next instance, or
another member, continues at the committed offsets.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.groups.group_clients import (
    PROTOCOL,
    PROTOCOL_TYPE,
    decoded_places,
    encoded_names,
    encoded_places,
)
from metaquorum.simulations.harness.client import BROKEN
from metaquorum.simulations.replication.replicas import Place
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.replication.replication_scenario import AnyClient
from metaquorum.simulations.transactions.transaction_checkers import (
    CommittedIsShown,
    PositionsAreCommitted,
)
from metaquorum.simulations.transactions.transaction_history import Transaction
from metaquorum.simulations.transactions.transactional_clients import (
    CrashError,
    RefusedError,
    TransactionalClient,
)
from metaquorum.simulations.workloads.consumer import LATEST
from metaquorum.wire.messages.heartbeat import HeartbeatRequest
from metaquorum.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from metaquorum.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from metaquorum.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.schema.message import Message

INPUT: Final = "input"
OUTPUT: Final = "output"
CRASHES: Final = 0.6  # share of instances
STEPS: Final = (8, 20, 40)  # requests until a crash, at most
COMMITS: Final = 0.9
LOOKS: Final = 0.2  # share of commits whose offsets are read while their markers are on the way
PAUSES: Final = 0.1  # share of transactions with a pause longer than the session, before the end
SESSION_MS: Final = 1000
_STABLE_SINCE: Final = 7  # version of OffsetFetch with require_stable
_FETCH_GROUPS_SINCE: Final = 8
_IDS_SINCE: Final = 10
_SYNC_PROTOCOL_SINCE: Final = 5
_LEAVES_GENERATION: Final = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FENCED_INSTANCE_ID,
)


class RejoinError(Exception):
    """Raised if the generation of the group is over."""


class ChainMember(TransactionalClient):
    """One member of a group that copies the input to the output, exactly once."""

    def __init__(
        self,
        cluster_state: ReplicatedClusterState,
        name: str,
        draw: Random,
        group_id: str,
        timeout_ms: int,
        sources: Sequence[AnyClient],
    ) -> None:
        """Create the member; `sources`: the clients that write to the input."""
        super().__init__(cluster_state, name, draw, name, timeout_ms)
        self.group_id = group_id
        self._sources = sources
        fetch = ApiKey.OFFSET_FETCH
        self._versions[fetch] = max(self._versions[fetch], _STABLE_SINCE)
        self._member_id = ""
        self._generation = -1
        self._positions: dict[tuple[str, Place], int] = {}
        self._heard_at = 0.0

    async def run(self, runtime: Runtime) -> None:
        while not self.cluster_state.closing and not self._is_stuck() and not self.done:
            crashes = self._draw.random() < CRASHES and not self.cluster_state.calm
            self._new_instance(self._draw.randint(0, self._draw.choice(STEPS)) if crashes else -1)
            self._member_id, self._generation = "", -1
            try:
                await self._live(runtime)
            except CrashError as error:
                self.say(f"{error}")
                self.cluster_state.world.count("members of chains that crash")
            except (RefusedError, RejoinError) as error:
                self.say(f"begins again: {error!r}")
            await sleep(runtime.clock, RETRY_S * (1 + 4 * self._draw.random()))
        self.close_links()
        self.done = True

    async def _live(self, runtime: Runtime) -> None:
        await self.learn_level(runtime)
        await self.init_producer(runtime)
        while not self.done:
            try:
                await self._join(runtime)
                await self._read_positions(runtime)
                while not self.done:
                    self._step()
                    await self._heartbeat(runtime)
                    await self._work(runtime)
            except RejoinError as error:
                self.say(f"joins again: {error}")

    # Membership

    async def _join(self, runtime: Runtime) -> None:
        """Join the group, and get the owned partitions. Raises RejoinError."""
        join = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=self._member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=PROTOCOL, metadata=encoded_names([INPUT]))],
        )
        code, joined = await self._of_group(runtime, ApiKey.JOIN_GROUP, join)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
        elif code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        if code is not ErrorCode.NONE:
            await sleep(runtime.clock, RETRY_S * self._draw.random())
            raise RejoinError(code.name)
        self._member_id, self._generation = joined.member_id, joined.generation_id
        assignments: list[SyncGroupRequestAssignment] = []
        if joined.leader == self._member_id:
            ids = [member.member_id for member in joined.members]
            places = [(name, place.partition) for name, place in self._inputs()]
            assignments = [
                SyncGroupRequestAssignment(
                    member_id=member_id, assignment=encoded_places(places[number :: len(ids)])
                )
                for number, member_id in enumerate(ids)
            ]
        has_protocol = self._versions[ApiKey.SYNC_GROUP] >= _SYNC_PROTOCOL_SINCE
        sync = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type=PROTOCOL_TYPE if has_protocol else None,
            protocol_name=PROTOCOL if has_protocol else None,
            assignments=assignments,
        )
        code, synced = await self._of_group(runtime, ApiKey.SYNC_GROUP, sync)
        if code is not ErrorCode.NONE:
            await sleep(runtime.clock, RETRY_S * self._draw.random())
            raise RejoinError(code.name)
        owned = set(decoded_places(bytes(synced.assignment)))
        self._positions = {
            (name, place): -1 for name, place in self._inputs() if (name, place.partition) in owned
        }
        self._heard_at = self.cluster_state.world.now
        self.say(f"owns {sorted(owned)} in generation {self._generation}")

    async def _of_group(
        self, runtime: Runtime, api: ApiKey, message: Message
    ) -> tuple[ErrorCode, Any]:
        code, response, _ = await self.ask_group(
            runtime, api, message, lambda r: [r.error_code], self.group_id
        )
        return code, response

    async def _heartbeat(self, runtime: Runtime) -> None:
        if self.cluster_state.world.now - self._heard_at < SESSION_MS / 4000:
            return
        message = HeartbeatRequest(
            group_id=self.group_id, generation_id=self._generation, member_id=self._member_id
        )
        self._heard_at = self.cluster_state.world.now
        code, _ = await self._of_group(runtime, ApiKey.HEARTBEAT, message)
        if code is not ErrorCode.NONE:
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id = ""
            raise RejoinError(code.name)

    def _inputs(self) -> list[tuple[str, Place]]:
        return self._places_of(INPUT)

    def _places_of(self, name: str) -> list[tuple[str, Place]]:
        lasting = self.cluster_state.topic_outcomes.lasting.get(name)
        if lasting is None:
            return []
        topic_id, partitions = lasting
        return [(name, Place(topic_id, index)) for index in range(partitions)]

    # Work

    async def _read_positions(self, runtime: Runtime) -> None:
        """Read the committed offsets, once they are stable; begin at 0 without one."""
        if self._positions:
            found = await read_positions(self, runtime, self.group_id, list(self._positions))
            self._positions = {at: max(offset, 0) for at, offset in found.items()}
            self.say(f"continues at {[(str(at[1]), o) for at, o in self._positions.items()]}")

    async def _work(self, runtime: Runtime) -> None:
        """Copy a few records in one transaction, or find that all are copied."""
        if not self._positions:
            await sleep(runtime.clock, RETRY_S)
            self.done = self._are_sources_done and bool(self._inputs())
            return
        usable = [at for at in sorted(self._positions) if not self.is_over(*at)]
        if not usable or all(self.is_over(*at) for at in self._places_of(OUTPUT)):
            await self._finish(runtime)
            return
        at = self._draw.choice(usable)
        name, place = at
        before = self._positions[at]
        try:
            leader = self._leaders.get(place)
            if leader is None:
                leader = self._leaders[place] = await self.leader(runtime, name, place)
            self._step()
            link = await self._link(runtime, leader)
            read = await self.fetch_stable(link, name, place, before, self._draw.choice([0, 20]))
            if read.code is ErrorCode.OFFSET_OUT_OF_RANGE:  # copied records of the input were lost
                self._positions[at] = await self.list_offset(link, name, place.partition, LATEST)
                return
            if read.code is not ErrorCode.NONE:
                raise EOFError(read.code.name)
            if read.next_offset == before:
                await self._finish(runtime)
                return
        except BROKEN as error:
            self.say(f"{name}/{place}: {error!r}")
            self._leaders.pop(place, None)
            self.close_links()  # one of them has a request without an answer
            await sleep(runtime.clock, RETRY_S)
            return
        await self._copy(runtime, at, read.records, read.next_offset)

    async def _finish(self, runtime: Runtime) -> None:
        """End if the input is written, and the group has committed the ends of all partitions."""
        await sleep(runtime.clock, RETRY_S * self._draw.random())
        if not self._are_sources_done:
            return
        try:
            await self._look_at_ends(runtime)
        except BROKEN as error:
            self.say(f"ends: {error!r}")
            self.close_links()

    async def _look_at_ends(self, runtime: Runtime) -> None:
        outputs = self._places_of(OUTPUT)
        if outputs and all(self.is_over(*at) for at in outputs):
            self.done = True  # no transaction can be completed any longer
            return
        for name, place in self._positions:
            if self.is_over(name, place):
                continue
            leader = await self.leader(runtime, name, place)
            link = await self._link(runtime, leader)
            stable = await self.stable_offset(link, name, place.partition, LATEST)
            end = await self.list_offset(link, name, place.partition, LATEST)
            checker = self.cluster_state.checker(CommittedIsShown)
            stays_open = checker.may_stay_open(checker.cluster_history.history(*place))
            wanted = stable if stays_open else end
            if self._positions[name, place] < wanted or stable < wanted:
                return
        self.done = True

    @property
    def _are_sources_done(self) -> bool:
        return self.cluster_state.calm and all(source.done for source in self._sources)

    async def _copy(
        self,
        runtime: Runtime,
        at: tuple[str, Place],
        records: list[tuple[int, bytes]],
        next_offset: int,
    ) -> None:
        """Write the output of some records and the position after them in one transaction."""
        transaction = await self.begin(runtime)
        try:
            await self._transform(runtime, transaction, at, records)
            await self.commit_offsets(
                runtime,
                transaction,
                self.group_id,
                {at: next_offset},
                generation=self._generation,
                member_id=self._member_id,
            )
            if self._draw.random() < PAUSES and not self.cluster_state.calm:
                # Another member takes over the partition while the offsets are pending.
                self.cluster_state.world.count("members of chains that pause")
                await sleep(runtime.clock, SESSION_MS / 1000 * self._draw.uniform(1, 2))
            commits = self._draw.random() < COMMITS
            await self.end(runtime, transaction, commits=commits)
            if commits:
                self._positions[at] = next_offset
                self.cluster_state.world.count("records copied", len(records))
            if not commits or self._draw.random() < LOOKS:
                await self._read_positions(runtime)
        except RefusedError as error:
            self.say(f"{transaction.number} is refused: {error}")
            self.cluster_state.world.count(f"copies refused: {error.code.name}")
            await self._give_up(runtime, transaction, error)
            if error.code in _LEAVES_GENERATION:
                raise RejoinError(error.code.name) from error
            await self._read_positions(runtime)

    async def _give_up(
        self, runtime: Runtime, transaction: Transaction, error: RefusedError
    ) -> None:
        if error.is_fatal or transaction.commit_asked_at is not None:
            await self.init_producer(runtime)
            return
        try:
            await self.end(runtime, transaction, commits=False)
        except RefusedError:
            await self.init_producer(runtime)

    async def _transform(
        self,
        runtime: Runtime,
        transaction: Transaction,
        at: tuple[str, Place],
        records: list[tuple[int, bytes]],
    ) -> None:
        outputs = [at for at in self._places_of(OUTPUT) if not self.is_over(*at)]
        if not outputs:
            raise CrashError("no output")
        for offset, _ in records:
            name, place = self._draw.choice(outputs)
            values = self.new_values(transaction, place, 1)
            self.history.sources[values[0]] = at[1], offset
            await self.produce(runtime, transaction, name, place, values, [b"copy"])


async def read_positions(
    client: TransactionalClient, runtime: Runtime, group_id: str, places: list[tuple[str, Place]]
) -> dict[tuple[str, Place], int]:
    """Return the stable committed offsets of a group, -1 without one; checked."""
    version = client.version(ApiKey.OFFSET_FETCH)
    if version < _FETCH_GROUPS_SINCE:
        message = OffsetFetchRequest(
            group_id=group_id,
            topics=[
                OffsetFetchRequestTopic(name=name, partition_indexes=[place.partition])
                for name, place in places
            ],
            require_stable=True,
        )
    else:
        rows = [
            OffsetFetchRequestTopics(
                name=name if version < _IDS_SINCE else "",
                topic_id=place.topic_id,
                partition_indexes=[place.partition],
            )
            for name, place in places
        ]
        group = OffsetFetchRequestGroup(group_id=group_id, topics=rows)
        message = OffsetFetchRequest(groups=[group], require_stable=True)

    def codes(response: Any) -> list[int]:
        of = response if version < _FETCH_GROUPS_SINCE else response.groups[0]
        return [of.error_code, *(row.error_code for t in of.topics for row in t.partitions)]

    code, response, asked_at = await client.ask_group(
        runtime, ApiKey.OFFSET_FETCH, message, codes, group_id
    )
    if code is not ErrorCode.NONE:
        raise RefusedError(code)
    of_group = response if version < _FETCH_GROUPS_SINCE else response.groups[0]
    found = [row for topic in of_group.topics for row in topic.partitions]
    positions: dict[tuple[str, Place], int] = {}
    checker = client.cluster_state.checker(PositionsAreCommitted)
    for (name, place), row in zip(places, found, strict=True):
        positions[name, place] = int(row.committed_offset)
        checker.read(group_id, place, int(row.committed_offset), asked_at, is_stable=True)
    return positions
