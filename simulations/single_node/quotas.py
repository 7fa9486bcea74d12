"""Scenario `quotas`: clients that exceed their quotas, and an administrator that changes quotas.

The world has one node. Groups of connections, each group with one client id, are greedy or bursty;
one client only creates topics. Quotas of every kind of entity are set, changed and removed; the
node may be killed.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeAlias, TypeVar

import trio

from metaquorum.dataplane.quotas.quota_status import QuotaStatus
from metaquorum.metadata.quota_lookup import CLIENT_ID, REQUEST_PERCENTAGE, USER
from metaquorum.quorum.controller.quota_changes import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
)
from metaquorum.quorum.rpc.methods import ANONYMOUS
from metaquorum.runtime import Runtime
from metaquorum.simulations.checkers.quotas import (
    ANY,
    QUOTA_CHECKERS,
    ChangesHold,
    ConnectionsEnd,
    MutationsWait,
    MutesEnd,
    NobodyStarves,
    RateHolds,
    Resolved,
    RuleApplies,
    resolved,
)
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.harness.node import NodeOnMachine
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.kernel.clock import THREAD_PIECE_CPU_S
from metaquorum.simulations.kernel.comparing import Comparing
from metaquorum.simulations.kernel.world import World
from metaquorum.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from metaquorum.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import APIS, ApiKey
from metaquorum.wire.records.records import Codec, Record, batches, encode_batch

C = TypeVar("C", bound=Comparing)
Entity: TypeAlias = tuple[str | None, str | None]  # user and client id
Values: TypeAlias = Mapping[str, float | None]

NODE: Final = "node"
PORT: Final = 9092
USER_NAME: Final = ANONYMOUS.removeprefix("User:")
MAX_CONNECTIONS: Final = 60
MUTATIONS: Final = 2.0
TOPIC_PARTITIONS: Final = 5
FETCH_BYTES: Final = 30_000
THINK_S: Final = 0.05
SLACK_S: Final = 0.5
ANSWER_LIMIT_S: Final = 300.0
REST_S: Final = 2.0  # time that a response may take in addition to its throttle time
FRAME_BYTES: Final = 40  # least size of a Produce request without its batch
BATCH_OVERHEAD_BYTES: Final = 100  # most bytes of a batch with one record, without its value
# Shares of the worlds with a group whose batches are refused, with a walker (`_walk`), and with a
# client that returns (`_return`).
SKIPPING: Final = 0.2
WALKING: Final = 0.2
RETURNING: Final = 0.2
RETURNING_RATE: Final = 20_000.0
RETURNING_BYTES: Final = 2500
STRANGERS: Final = 8
MOST_BATCHES: Final = 100
WALKER_PERCENT: Final = 0.5
KEYS: Final = {"produce": PRODUCER_BYTE_RATE, "fetch": CONSUMER_BYTE_RATE}


@dataclass(eq=False)
class Group:
    """Connections with one client id that all send the same kind of requests."""

    client_id: str
    topic: str
    kind: str  # produce or fetch
    manner: str  # greedy or bursty
    size: int
    batch_bytes: int
    # Bytes moved before the last change: they weigh more if the quota was lowered.
    old_bytes: int = 0
    progressed_at: float = 0.0
    moves: list[tuple[float, int]] = field(default_factory=list)
    conns: list["Conn"] = field(default_factory=list)
    # Batches skip sequence numbers, so they are refused; quotas count them nevertheless.
    skips_sequences: bool = False

    @property
    def key(self) -> str:
        return KEYS[self.kind]

    @property
    def request_bytes(self) -> int:
        """Most bytes that quotas count for one request; a fetch returns a larger batch whole."""
        batch_bytes = self.batch_bytes + BATCH_OVERHEAD_BYTES
        if self.kind == "produce":
            return batch_bytes + FRAME_BYTES
        return max(batch_bytes, FETCH_BYTES)

    def moved_since(self, then: float) -> int:
        return sum(size_bytes for at, size_bytes in self.moves if at >= then)


@dataclass(eq=False)
class Conn:
    """One connection of a group, and the time at which its next response is due."""

    group: Group
    heeds: bool  # whether the client waits for the throttle time before its next request
    not_before: float = 0.0
    due: float = 0.0
    is_freed: bool = False
    is_waiting: bool = False


def draw_groups(draw: Random) -> list[Group]:
    groups = []
    for number in range(draw.randint(2, 4)):
        kind = draw.choice(["produce", "fetch"]) if number > 1 else ("produce", "fetch")[number]
        manner = draw.choice(["greedy", "greedy", "bursty"])
        size = draw.choice([1, 1, 2, 4])
        batch_bytes = draw.choice([1000, 5000, 20_000, 60_000])
        groups.append(Group(f"{kind}-{number}", f"t{number}", kind, manner, size, batch_bytes))
    return groups


class Quotas:
    """Course of one world: its node, clients, quotas and checkers."""

    def __init__(self, world: World, leave_out: Collection[int]) -> None:
        self.world = world
        draw = world.stream("quotas")
        self.draw = draw
        self.groups = draw_groups(draw)
        # A separate random stream for few worlds: the other worlds do not change.
        narrow = world.stream("narrow world")
        self.groups[0].skips_sequences = narrow.random() < SKIPPING
        self.has_walker = narrow.random() < WALKING
        self.has_returning = narrow.random() < RETURNING and not self.has_walker
        self.producer_ids: dict[ClientConnection, tuple[int, int]] = {}
        self.samples = draw.choice([1, 2, 5, 11])
        if self.has_returning:
            # Nothing else produces: allowances of producers are forgotten for strangers alone.
            self.groups = [group for group in self.groups if group.kind == "fetch"]
            self.samples = 4
        self.window_s = float(self.samples)
        self.length_s = 40.0
        self.rules: dict[Entity, dict[str, float]] = {}
        # Limits before a change that is in progress; None otherwise.
        self.before: dict[Group, tuple[Resolved | None, int]] | None = None
        self.closing = False
        self.checkers = {kind: kind(world) for kind in QUOTA_CHECKERS}
        self.mutator_was_reset = False
        world.faults = dict(enumerate(draw.choices(["kill"], k=draw.choice([0, 0, 1]))))
        self.faults = [fault for n, fault in world.faults.items() if n not in leave_out]
        configs = {"quota.window.num": str(self.samples), "max.connections": str(MAX_CONNECTIONS)}
        machine = world.machine(NODE)
        self.node = NodeOnMachine(world, machine, PORT, configs)

    def checker(self, kind: type[C]) -> C:
        checker = self.checkers[kind]
        assert isinstance(checker, kind)
        return checker

    async def connect(self, runtime: Runtime, client_id: str) -> ClientConnection:
        versions = {key: api.max_version for key, api in APIS.items()}
        versions[ApiKey.PRODUCE] = self.draw.randint(3, 12)
        versions[ApiKey.FETCH] = self.draw.randint(4, 12)
        connection = await runtime.network.connect(NODE, PORT)
        return ClientConnection(connection, client_id, versions, self)

    def answered(self, who: str, expected: int, correlation_id: int) -> None:
        if expected != correlation_id:
            self.world.violate("P1 AnswersInOrder", f"{who} got {correlation_id}, not {expected}")

    # Course of the world

    async def play(self) -> None:
        world = self.world
        await self.node.start()
        await self._run("setup", self._set_up)
        fates = [
            world.machine("mutator").start(self._mutate),
            world.machine("admin").start(self._administer),
        ]
        for group in self.groups:
            group.progressed_at = world.now
            for number in range(group.size):
                conn = Conn(group, heeds=self.draw.random() < 0.3)
                group.conns.append(conn)
                program = self._client(conn)
                fates.append(world.machine(f"{group.client_id}-{number}").start(program))
        if self.has_walker:
            fates.append(world.machine("walker").start(self._walk))
        if self.has_returning:
            fates.append(world.machine("returning").start(self._return))
        await world.sleep(self.length_s / 2)
        for fault in self.faults:
            await self._fault(fault)
        await world.sleep(self.length_s / 2)
        for group in self.groups:
            self._progress(group)
        self.closing = True
        await fates[1].done.wait()  # one administrator at a time
        await self._run("setup", self._free_all)
        for fate in fates:
            await fate.done.wait()
            if fate.error is not None:
                raise fate.error
        await self._run("last", self._fill_up)
        await self.node.stop()

    async def _run(self, name: str, program: Any) -> None:
        machine = self.world.machines.get(name) or self.world.machine(name)
        fate = machine.start(program)
        await fate.done.wait()
        if fate.error is not None:
            raise fate.error

    async def _fault(self, fault: str) -> None:
        self.world.say("fault", fault)
        self.world.count(f"fault: {fault}")
        self.node.machine.kill()
        self.checker(RateHolds).begin_anew()
        self.mutator_was_reset = True
        for group in self.groups:
            group.progressed_at = float("inf")
            for conn in group.conns:
                conn.not_before, conn.due = 0.0, float("inf")
        await self.node.start()
        for group in self.groups:
            group.progressed_at = self.world.now

    async def _set_up(self, runtime: Runtime) -> None:
        connection = await self.connect(runtime, "setup")
        for group in self.groups:
            await self._create(connection, group.topic, 1)
            if group.kind == "fetch":
                for _ in range(max(5, 400_000 // group.batch_bytes)):
                    await self._produce(connection, group)
        await self._change(connection, (None, "mutator"), {CONTROLLER_MUTATION_RATE: MUTATIONS})
        for group in self.groups:
            entity = (None, group.client_id)
            await self._change(connection, entity, {group.key: self._rate()})
        if self.has_walker:
            await self._create(connection, "walked", 1)
            await self._change(connection, (None, "walker"), {REQUEST_PERCENTAGE: WALKER_PERCENT})
        if self.has_returning:
            await self._create(connection, "returned", 1)
            values = {PRODUCER_BYTE_RATE: RETURNING_RATE}
            await self._change(connection, (USER_NAME, None), values)
            for number in range(STRANGERS):
                await self._change(connection, (USER_NAME, f"stranger-{number}"), values)
        connection.close()

    def _rate(self) -> float:
        return float(self.draw.choice([5_000, 5_000, 20_000, 50_000, 200_000]))

    async def _create(self, connection: ClientConnection, name: str, partitions: int) -> Any:
        asked = CreateTopicsRequest(
            topics=[CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)],
            timeout_ms=10_000,
        )
        return await connection.call(ApiKey.CREATE_TOPICS, asked, ANSWER_LIMIT_S)

    # Requests that quotas limit

    async def _produce(self, connection: ClientConnection, group: Group) -> tuple[Any, int]:
        producer_id, sequence = -1, -1
        if group.skips_sequences:
            producer_id, sequence = await self._next_sequence(connection)
        batch = encode_batch(
            [Record(0, 0, None, bytes(group.batch_bytes))],
            producer_id=producer_id,
            producer_epoch=min(producer_id, 0),
            base_sequence=sequence,
        )
        asked = ProduceRequest(
            acks=1,
            timeout_ms=5000,
            topic_data=[
                TopicProduceData(
                    name=group.topic,
                    partition_data=[PartitionProduceData(index=0, records=batch)],
                )
            ],
        )
        answer = await connection.call(ApiKey.PRODUCE, asked, ANSWER_LIMIT_S)
        row = answer.responses[0].partition_responses[0]
        if sequence > 0 and row.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.world.count("sequences refused")
        elif row.error_code:
            raise EOFError(f"refused: {row.error_code}")
        else:
            self.world.count("acknowledged records")
        return answer, len(batch) + FRAME_BYTES

    async def _next_sequence(self, connection: ClientConnection) -> tuple[int, int]:
        """Return the connection's producer id and a sequence: 0 first, then always one skipped."""
        producer_id, sequence = self.producer_ids.get(connection, (-1, -1))
        if producer_id < 0:
            asked = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
            answer = await connection.call(ApiKey.INIT_PRODUCER_ID, asked, ANSWER_LIMIT_S)
            if answer.error_code:
                raise EOFError(f"no producer id: {answer.error_code}")
            producer_id = answer.producer_id
        sequence = 0 if sequence < 0 else sequence + 2
        self.producer_ids[connection] = producer_id, sequence
        return producer_id, sequence

    async def _fetch(
        self,
        connection: ClientConnection,
        group: Group,
        offset: int,
    ) -> tuple[Any, int, int]:
        """Fetch, and return the response, its record bytes, and the next offset."""
        asked = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            topics=[
                FetchTopic(
                    topic=group.topic,
                    partitions=[
                        FetchPartition(
                            partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
                        )
                    ],
                )
            ],
        )
        answer = await connection.call(ApiKey.FETCH, asked, ANSWER_LIMIT_S)
        if not answer.responses:
            return answer, 0, offset
        row = answer.responses[0].partitions[0]
        data = bytes(row.records or b"")
        for _, header in batches(data):
            offset = header.last_offset + 1
        return answer, len(data), offset if data else 0

    # Clients

    def _client(self, conn: Conn) -> Any:
        async def run(runtime: Runtime) -> None:
            while not self.closing:
                with suppress(*BROKEN):
                    connection = await self.connect(runtime, conn.group.client_id)
                    try:
                        await self._use(connection, conn)
                    finally:
                        connection.close()
                conn.not_before, conn.due, conn.is_waiting = 0.0, float("inf"), False
                await trio.sleep(0.1)

        return run

    async def _use(self, connection: ClientConnection, conn: Conn) -> None:
        group, world = conn.group, self.world
        offset = burst = 0
        while not self.closing:
            asked_at = world.now
            limit, was_stable = self._limit(group), self.before is None
            conn.is_waiting = True
            if group.kind == "produce":
                answer, size_bytes = await self._produce(connection, group)
            else:
                answer, size_bytes, offset = await self._fetch(connection, group, offset)
            conn.is_waiting = False
            was_stable = was_stable and self.before is None and limit == self._limit(group)
            self._answered(conn, asked_at, answer.throttle_time_ms, size_bytes, was_stable)
            if was_stable:
                self._limited(group, limit, answer.throttle_time_ms, size_bytes)
            if conn.heeds:
                await self._heed(answer.throttle_time_ms / 1000)
            burst += 1
            if group.manner == "bursty" and burst % 20 == 0:
                await trio.sleep(self.draw.uniform(1, 8))
            await trio.sleep(THINK_S)

    async def _heed(self, throttle_s: float) -> None:
        """Wait for as long as a client is throttled; at the end of the world, no longer."""
        until = self.world.now + throttle_s
        while not self.closing and self.world.now < until:
            await trio.sleep(min(1.0, until - self.world.now))

    def _limit(self, group: Group) -> Resolved | None:
        return resolved(self.rules, group.key, USER_NAME, group.client_id)

    def _answered(
        self,
        conn: Conn,
        asked_at: float,
        throttle_ms: int,
        size_bytes: int,
        was_stable: bool,  # whether no quota has changed since the request
    ) -> None:
        group, now = conn.group, self.world.now
        late_s = now - max(conn.due, asked_at + 0.1)
        if conn.is_freed:
            self.checker(ChangesHold).freed(group.client_id, late_s)
        elif conn.due > 0:
            self.checker(MutesEnd).answered(group.client_id, conn.not_before - now, late_s)
        conn.is_freed = False
        until = now + throttle_ms / 1000
        # A change may have unmuted the connection while this response was in flight.
        conn.not_before = until if throttle_ms and was_stable else 0.0
        conn.due = until
        group.moves.append((now, size_bytes))
        if size_bytes:
            self._progress(group)
        if throttle_ms:
            self.world.count("throttled")

    def _limited(
        self, group: Group, limit: Resolved | None, throttle_ms: int, size_bytes: int
    ) -> None:
        """Check a response, given that no quota has changed since its request."""
        if limit is None:
            self.checker(RuleApplies).unlimited(group.client_id, throttle_ms)
            return
        if size_bytes:
            self.checker(RateHolds).used(limit, self.window_s, self._sharing(limit), size_bytes)
        if throttle_ms:
            throttled = self.checker(MutesEnd).throttled
            throttled(group.client_id, throttle_ms / 1000, self._most_owed(limit), limit.quota)

    def _most_owed(self, limit: Resolved) -> float:
        """Return the bytes for which clients may be throttled: the delay is at most bytes / quota.

        They are the larger of the bytes in the window and the level of a leaky bucket that drains
        at the quota, over all groups that ever shared the quota, plus all requests in flight.
        """
        groups = [
            group
            for group in self.groups
            if group.key == limit.sharers[0] and limit.sharers[2] in (None, group.client_id)
        ]
        now = self.world.now
        in_window = sum(group.moved_since(now - self.window_s - SLACK_S) for group in groups)
        level, since = 0.0, 0.0
        for at, size_bytes in sorted(move for group in groups for move in group.moves):
            level = max(0.0, level - limit.quota * (at - since)) + size_bytes
            since = at
        level = max(0.0, level - limit.quota * (now - since))
        return max(in_window, level) + sum(group.size * group.request_bytes for group in groups)

    def _standing(self, group: Group) -> tuple[Resolved | None, int]:
        """Return the group's limit, and the number of connections that share its quota."""
        limit = self._limit(group)
        return limit, 0 if limit is None else self._sharing(limit)

    def _sharing(self, limit: Resolved) -> int:
        return sum(
            group.size
            for group in self.groups
            if (other := self._limit(group)) is not None and other.sharers == limit.sharers
        )

    def _progress(self, group: Group) -> None:
        self._judge_wait(group)
        group.progressed_at = self.world.now

    def _judge_wait(self, group: Group) -> None:
        """Check a group's longest wait: all debts of the sharing connections, and two windows.

        A wait that ends while the group's limit changes was checked under the old limit when the
        change began (`_change`); neither limit alone explains the rest.
        """
        limit, now = self._limit(group), self.world.now
        if self.closing:  # clients send no further requests
            return
        if self.before is not None and self.before[group] != self._standing(group):
            return
        if limit is not None and group.manner == "greedy" and group.progressed_at < now:
            debt = group.size * group.request_bytes
            at_most_s = (2 * debt + group.old_bytes) / limit.quota + 2 * self.window_s + REST_S
            waited_s = now - group.progressed_at
            # A client that waits for the throttle time does not notice that it was unmuted.
            is_awake = not any(conn.heeds for conn in group.conns)
            if is_awake and self._sharing(limit) == group.size:
                self.checker(NobodyStarves).progressed(group.client_id, waited_s, at_most_s)

    # Other clients

    async def _walk(self, runtime: Runtime) -> None:
        """Send more than the request quota allows: batches decompressed in a worker thread.

        Only the CPU time that the simulation assigns to the thread counts. The limit is twice the
        quota, as the next request is charged for a request, and no throttle time exceeds a sample.
        """
        quota = Resolved(2 * WALKER_PERCENT, (REQUEST_PERCENTAGE, None, "walker"))
        records = [Record(number, 0, None, bytes(10)) for number in range(20)]
        batch = encode_batch(records, codec=Codec.GZIP)
        rows = [PartitionProduceData(index=0, records=batch)]
        topic = TopicProduceData(name="walked", partition_data=rows)
        asked = ProduceRequest(acks=1, timeout_ms=5000, topic_data=[topic])
        while not self.closing:
            with suppress(*BROKEN):
                connection = await self.connect(runtime, "walker")
                try:
                    while not self.closing:
                        await connection.call(ApiKey.PRODUCE, asked, ANSWER_LIMIT_S)
                        used = THREAD_PIECE_CPU_S * 100
                        self.checker(RateHolds).used(quota, self.window_s, 1, used)
                        await trio.sleep(THINK_S)
                finally:
                    connection.close()
            await trio.sleep(0.1)

    async def _return(self, runtime: Runtime) -> None:
        """Use up an allowance again and again that was dropped for a stranger in between.

        It is the user's: a client id that the node knows and one that it does not know share it.
        """
        number = 0
        while not self.closing:
            number += 1
            with suppress(*BROKEN):
                await self._burst(runtime, "returning")
                await self._burst(runtime, f"newcomer-{number}")
                await trio.sleep(self.window_s + 1)  # longer than any use counts
                await self._burst(runtime, f"stranger-{number % STRANGERS}", 1)
                self.world.count("allowances dropped for strangers")
            await trio.sleep(0.1)

    async def _burst(self, runtime: Runtime, client_id: str, most: int = MOST_BATCHES) -> None:
        """Produce until the client is throttled, or its quota has been removed."""
        group = Group(client_id, "returned", "produce", "bursty", 1, RETURNING_BYTES)
        connection = await self.connect(runtime, client_id)
        try:
            for _ in range(most):
                limit = self._limit(group)
                answer, size_bytes = await self._produce(connection, group)
                if limit is None or self._limit(group) != limit:
                    return
                self.checker(RateHolds).used(limit, self.window_s, 2, size_bytes)
                if answer.throttle_time_ms:
                    return
        finally:
            connection.close()

    async def _mutate(self, runtime: Runtime) -> None:
        while not self.closing:
            with suppress(*BROKEN):
                connection = await self.connect(runtime, "mutator")
                try:
                    await self._mutate_over(connection)
                finally:
                    connection.close()
            await trio.sleep(0.1)

    async def _mutate_over(self, connection: ClientConnection) -> None:
        checker, began, made = self.checker(MutationsWait), self.world.now, 0
        self.mutator_was_reset = False
        while not self.closing:
            asked = CreateTopicsRequest(
                topics=[CreatableTopic(name="only", num_partitions=1000, replication_factor=1)],
                timeout_ms=10_000,
                validate_only=True,
            )
            answer = await connection.call(ApiKey.CREATE_TOPICS, asked, ANSWER_LIMIT_S)
            checker.looked(answer.topics[0].error_code)
            name = f"made-{self.world.now:.4f}"
            answer = await self._create(connection, name, TOPIC_PARTITIONS)
            code = answer.topics[0].error_code
            if code == ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                self.world.count("changes refused")
                most_s = TOPIC_PARTITIONS / MUTATIONS
                checker.refused(answer.throttle_time_ms / 1000, most_s + 0.01)
                answer = await self._create(connection, name, TOPIC_PARTITIONS)
                code = answer.topics[0].error_code
                checker.tried_again(code)
            made += 0 if code else TOPIC_PARTITIONS
            if not self.mutator_was_reset:
                # The bucket, and partitions created before this connection.
                at_most = MUTATIONS * (self.world.now - began + 11 + SLACK_S) + 2 * TOPIC_PARTITIONS
                checker.made(made, at_most)
            await trio.sleep(0.2)

    # Changes

    async def _administer(self, runtime: Runtime) -> None:
        draw = self.world.stream("admin")
        todo: tuple[Entity, Values] | None = None
        while not self.closing:
            with suppress(*BROKEN):
                connection = await self.connect(runtime, "admin")
                try:
                    while not self.closing:
                        if todo is None:
                            await trio.sleep(draw.uniform(2, 12))
                            todo = self._draw_change(draw)
                        await self._change(connection, *todo)
                        todo = None
                        self._look_up()
                finally:
                    connection.close()
            # The last request may have taken effect or not: it is sent again.
            await trio.sleep(0.1)

    def _draw_change(self, draw: Random) -> tuple[Entity, Values]:
        group = draw.choice(self.groups)
        entity: Entity = draw.choice(
            [
                (None, group.client_id),
                (None, group.client_id),
                (None, ANY),
                (USER_NAME, None),
                (USER_NAME, group.client_id),
                (USER_NAME, ANY),
                (ANY, None),
                (ANY, group.client_id),
                (ANY, ANY),
            ]
        )
        value = None if draw.random() < 0.5 else self._rate()
        return entity, {group.key: value}

    async def _change(self, connection: ClientConnection, entity: Entity, values: Values) -> None:
        """Change quotas; they are in force on return, and uncertain until then."""
        if self.before is None:  # otherwise this is a retry
            for group in self.groups:
                self._judge_wait(group)
            self.before = {group: self._standing(group) for group in self.groups}
        for conn in self._conns():
            conn.not_before = 0.0
        own = self.rules.setdefault(entity, {})
        for key, value in values.items():
            if value is None:
                own.pop(key, None)
            else:
                own[key] = value
        asked = AlterClientQuotasRequest(
            entries=[
                EntryData(
                    entity=[
                        EntityData(entity_type=kind, entity_name=None if name == ANY else name)
                        for kind, name in zip((USER, CLIENT_ID), entity, strict=True)
                        if name is not None
                    ],
                    ops=[
                        OpData(key=key, value=value or 0.0, remove=value is None)
                        for key, value in values.items()
                    ],
                )
            ]
        )
        answer = await connection.call(ApiKey.ALTER_CLIENT_QUOTAS, asked, ANSWER_LIMIT_S)
        if answer.entries[0].error_code:
            raise EOFError(f"not changed: {answer.entries[0].error_message}")
        self.world.count("quotas changed")
        standings, self.before = self.before, None
        for conn in self._conns():
            conn.not_before = 0.0
        for group, standing in standings.items():
            if self._standing(group) == standing:
                continue
            now_limit = self._limit(group)
            group.progressed_at = self.world.now
            since = self.world.now - 2 * self.window_s
            group.old_bytes = sum(g.moved_since(since) for g in self.groups if g.kind == group.kind)
            for conn in group.conns:
                if now_limit is None and conn.is_waiting and conn.due > self.world.now:
                    self.world.count("freed by a change")
                    conn.is_freed, conn.due = True, self.world.now

    def _conns(self) -> list[Conn]:
        return [conn for group in self.groups for conn in group.conns]

    def _look_up(self) -> None:
        node = self.node.node
        if node is None or node.worker is None or self.before is not None:
            return
        status = QuotaStatus(node.worker.quotas)
        for group in self.groups:
            limit, use = self._limit(group), status.use(group.key, ANONYMOUS, group.client_id)
            self.checker(RuleApplies).looked_up(
                group.client_id,
                group.key,
                None if use is None else use.quota,
                None if limit is None else limit.quota,
            )

    async def _free_all(self, runtime: Runtime) -> None:
        """Remove all quotas, which unmutes all connections."""
        while True:
            with suppress(*BROKEN):
                connection = await self.connect(runtime, "setup")
                for entity, own in list(self.rules.items()):
                    if own:
                        await self._change(connection, entity, dict.fromkeys(own))
                connection.close()
                return
            await trio.sleep(0.1)

    async def _fill_up(self, runtime: Runtime) -> None:
        """Check that a client can open `max.connections` connections."""
        connections, taken = [], 0
        for _ in range(MAX_CONNECTIONS):
            connections.append(await self.connect(runtime, "last"))
        for connection in connections:
            with suppress(*BROKEN):
                await connection.call(ApiKey.API_VERSIONS, APIS[ApiKey.API_VERSIONS].request())
                taken += 1
        self.checker(ConnectionsEnd).taken(taken, MAX_CONNECTIONS)
        for connection in connections:
            connection.close()


async def _play_world(world: World, leave_out: Collection[int]) -> None:
    await Quotas(world, leave_out).play()


QUOTAS: Final = Scenario(
    "quotas",
    "clients that exceed their quotas; quotas that are set, changed and removed; perhaps a kill",
    _play_world,
    QUOTA_CHECKERS,
    (
        "throttled",
        "quotas changed",
        "freed by a change",
        "changes refused",
        "allowances dropped for strangers",
        "fault: kill",
    ),
)
