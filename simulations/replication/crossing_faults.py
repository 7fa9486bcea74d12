"""Scripted interleavings that random faults do not reach in a reasonable number of worlds.

Each *crossing* creates a topic with chosen replicas, brings them into one state, and then lets two
events happen at once: a leader is replaced while a follower truncates its log, or a change of an
ISR arrives after a newer one. The delays are drawn, so some worlds reach the exact interleaving. A
crossing that does not reach its state within `WITHIN_S` stops, and is not counted.

| kind | what happens |
|---|---|
| `uneven` | a leader that has appended nothing is succeeded by a replica that has more records |
| `unwanted cut` | a follower that is about to truncate its log becomes the leader before it does |
| `impatient` | followers fetch nothing until requests of producers with acks=all time out |
| `pair` | a partition of a Produce request changes its leader twice while another is uncommitted |
| `unclean` | a longer log returns to an uncleanly elected leader, and becomes the leader later |
| `half way` | a replica is elected uncleanly, or killed, before it has caught up |
| `late wish` | an AlterPartition request arrives after the partition's ISR has changed again |
| `dead wish` | an AlterPartition request arrives when the joining worker is fenced |
| `heir` | a new leader does not know the latest high watermark, and a follower lags behind it |
| `left behind` | a worker receives no metadata until it needs a snapshot |
| `reborn wish` | an AlterPartition request arrives when the joining worker has lost power |
| `cut back` | a replaced leader truncates records that it had synced, and stops |
| `handover` | another replica becomes the leader while appends queue at the old leader |
| `namesake` | a topic is deleted and created again, and a worker is killed soon after |
| `unregister` | the fault of that name, with a partition that only the unregistered worker has |
| `cut damage` | an eligible replica truncates damage, and is killed before it registers the loss |
| `deleted ahead` | DeleteRecords moves the log start of a new leader to the old leader's log end |
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final

import trio

from metaquorum.dataplane.log.segments.names import LOG, file_name
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.metadata.image import PartitionImage
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.checkers.log_files import naive_segments
from metaquorum.simulations.cluster.cluster_checkers import AnswersHold
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.cluster.cluster_state import Member
from metaquorum.simulations.cluster.faults import ActiveFault, FaultFunction, stop_machine
from metaquorum.simulations.harness.client import BROKEN
from metaquorum.simulations.replication.replica_checkers import (
    MIN_ISR,
    AcknowledgedIsCommitted,
    ReadsAreCommitted,
)
from metaquorum.simulations.replication.replica_clients import ALL, ReplicaReader
from metaquorum.simulations.replication.replicas import Identity, PartitionHistory, Place
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.replication.unregister_fault import unregister
from metaquorum.simulations.workloads.consumer import LATEST
from metaquorum.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from metaquorum.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from metaquorum.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from metaquorum.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import RETRIABLE, ErrorCode, KafkaError
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.batches import parse_header
from metaquorum.wire.records.records import HEADER_BYTES, Record, encode_batch

DATA: Final = "/data"
CONTROLLER: Final = "node-1"  # the only controller
# Timeout of a wait for a state, and the interval of the checks.
WITHIN_S: Final = 4.0
LOOK_S: Final = 0.002
# Delay of a link that must deliver one request late.
LATE_S: Final = 1.3
# Time within which workers notice broken connections, and write checkpoints.
NOTICED_S: Final = 0.2
UNKNOWN_PARTITIONS: Final = -1
REPLICATED: Final = "crossing"
# Topics created and deleted while a worker receives no metadata: enough that it needs a snapshot.
GONE: Final = 6
# Connections whose requests queue at one partition.
SENDERS: Final = 6
# High watermarks have been checkpointed after this time (interval: 0.5 s).
NAMESAKE_NOTED_S: Final = 0.6
# Batches that one client appends in a row.
BURST: Final = 4


class InterleavingClient(ReplicaReader):
    """Client that creates the topics of a crossing, elects leaders, and sends single requests."""

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        self._versions[ApiKey.ELECT_LEADERS] = max(1, self._versions[ApiKey.ELECT_LEADERS])
        self._versions[ApiKey.PRODUCE] = max(13, self._versions[ApiKey.PRODUCE])
        self._versions[ApiKey.DELETE_TOPICS] = max(6, self._versions[ApiKey.DELETE_TOPICS])
        self._machine = cluster_state.world.machine(name)
        self._sent = 0

    async def does(self, work: Callable[[Runtime], Awaitable[None]]) -> None:
        """Run `work` on the client's machine, until it ends or its connection breaks."""

        async def run(runtime: Runtime) -> None:
            try:
                await work(runtime)
            except BROKEN as error:
                self.say(f"connection lost: {error!r}")

        fate = self._machine.start(run)
        await fate.done.wait()
        if fate.error is not None:
            raise fate.error

    async def create(
        self,
        name: str,
        replicas: Sequence[Sequence[int]],
        configs: dict[str, str],
    ) -> Place | None:
        """Create a topic and return its first partition; None if the connection broke.

        `replicas`: the replicas of each partition, the preferred leader first.
        """
        assignments = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(each))
            for index, each in enumerate(replicas)
        ]
        topic = CreatableTopic(
            name=name,
            num_partitions=UNKNOWN_PARTITIONS,
            replication_factor=UNKNOWN_PARTITIONS,
            assignments=assignments,
            configs=[CreatableTopicConfig(name=key, value=text) for key, text in configs.items()],
        )
        topic_outcomes = self.cluster_state.topic_outcomes
        topic_outcomes.asked.add(name)
        for outcomes in (
            topic_outcomes.deletion_asked,
            topic_outcomes.deleted,
            topic_outcomes.refused,
        ):  # outcomes of an earlier topic with this name
            outcomes.discard(name)
        topic_outcomes.created.pop(name, None)

        async def work(runtime: Runtime) -> None:
            while name not in topic_outcomes.created:
                message = CreateTopicsRequest(topics=[topic], timeout_ms=3000)
                async with self.connected(runtime, replicas[0][0]) as connection:
                    answer = (await connection.call(ApiKey.CREATE_TOPICS, message)).topics[0]
                code = ErrorCode(answer.error_code)
                self.say(f"creates {name}: {code.name} {answer.error_message}")
                self.cluster_state.checker(AnswersHold).answered(name, code)
                assert code is ErrorCode.NONE or code in RETRIABLE, answer.error_message
                if code is ErrorCode.NONE:
                    topic_id = bytes(answer.topic_id)
                    least = int(configs.get(MIN_ISR, "1"))
                    self.cluster_state.min_isrs.setdefault(topic_id, set()).add(least)
                    topic_outcomes.created[name] = topic_id, len(replicas)
                    self.cluster_state.world.count("topics created")
                await sleep(runtime.clock, RETRY_S)

        await self.does(work)
        known = topic_outcomes.created.get(name)
        return None if known is None else Place(known[0], 0)

    async def delete(self, name: str, through: int) -> None:
        topic_outcomes = self.cluster_state.topic_outcomes
        topic_outcomes.deletion_asked.add(name)

        async def work(runtime: Runtime) -> None:
            state = DeleteTopicState(topic_id=topic_outcomes.created[name][0])
            message = DeleteTopicsRequest(topics=[state], timeout_ms=3000)
            async with self.connected(runtime, through) as connection:
                answer = (await connection.call(ApiKey.DELETE_TOPICS, message)).responses[0]
            code = ErrorCode(answer.error_code)
            self.say(f"deletes {name}: {code.name}")
            if code is ErrorCode.NONE:
                topic_outcomes.deleted.add(name)
                self.cluster_state.world.count("topics deleted")

        await self.does(work)

    async def elect(
        self, through: int, history: PartitionHistory, *, unclean: bool = False
    ) -> None:
        """Request the election of the preferred leader, or an `unclean` election."""
        at = history.topic, history.place.partition
        if unclean:
            self.cluster_state.cluster_history.unclean_asked.add(at)

        async def work(runtime: Runtime) -> None:
            request = TopicPartitions(topic=at[0], partitions=[at[1]])
            message = ElectLeadersRequest(
                election_type=int(unclean), topic_partitions=[request], timeout_ms=3000
            )
            async with self.connected(runtime, through) as connection:
                response = await connection.call(ApiKey.ELECT_LEADERS, message)
            for topic in response.replica_election_results:
                for row in topic.partition_result:
                    self.say(f"elects for {at}: {ErrorCode(row.error_code).name}")

        await self.does(work)

    async def produce(
        self, runtime: Runtime, worker_id: int, histories: Sequence[PartitionHistory], acks: int
    ) -> None:
        """Append one record to each of several partitions of a topic, with one request."""
        identities, message = self._batch(runtime, histories, acks)
        async with self.connected(runtime, worker_id) as connection:
            answer = await connection.call(ApiKey.PRODUCE, message)
        for row in answer.responses[0].partition_responses:
            history, identity = identities[row.index]
            self.say(f"{history}: {ErrorCode(row.error_code).name} at {row.base_offset}")
            if acks == ALL and not row.error_code:
                checker = self.cluster_state.checker(AcknowledgedIsCommitted)
                checker.acknowledged(history, int(row.base_offset), identity)

    def _batch(
        self, runtime: Runtime, histories: Sequence[PartitionHistory], acks: int
    ) -> tuple[dict[int, tuple[PartitionHistory, Identity]], ProduceRequest]:
        rows, identities = [], {}
        for history in histories:
            self._sent += 1
            value = f"{history.place.topic_id.hex()} {self.name} {self._sent}".encode()
            now_ms = runtime.clock.now_ms()
            data = encode_batch([Record(0, now_ms, None, value, ())])
            crc = parse_header(memoryview(data), 0).crc
            identities[history.place.partition] = history, Identity(crc, 0)
            rows.append(PartitionProduceData(index=history.place.partition, records=data))
        topic_id = histories[0].place.topic_id
        topic = TopicProduceData(name=histories[0].topic, topic_id=topic_id, partition_data=rows)
        message = ProduceRequest(
            transactional_id=None, acks=acks, timeout_ms=8000, topic_data=[topic]
        )
        return identities, message

    async def burst(
        self, runtime: Runtime, worker_id: int, history: PartitionHistory, count: int
    ) -> None:
        """Append `count` batches with acks=1, without waiting for responses between them."""
        async with self.connected(runtime, worker_id) as connection:
            for _ in range(count):
                _, message = self._batch(runtime, [history], 1)
                await connection.send(ApiKey.PRODUCE, message)
            for _ in range(count):
                await connection.receive()

    async def delete_records(
        self, runtime: Runtime, worker_id: int, history: PartitionHistory, offset: int
    ) -> None:
        at = history.topic, history.place.partition
        asked = self.cluster_state.cluster_history.deletions
        asked[at] = max(asked.get(at, 0), offset)
        row = DeleteRecordsPartition(partition_index=at[1], offset=offset)
        message = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=at[0], partitions=[row])], timeout_ms=2000
        )
        async with self.connected(runtime, worker_id) as connection:
            response = await connection.call(ApiKey.DELETE_RECORDS, message)
        code = ErrorCode(response.topics[0].partitions[0].error_code)
        self.say(f"deletes records of {at} before {offset}: {code.name}")

    async def ask_end(self, runtime: Runtime, worker_id: int, history: PartitionHistory) -> None:
        """Request the log end offset from a worker, and check it if the worker answers."""
        async with self.connected(runtime, worker_id) as connection:
            at = history.place.partition
            offset = await self.list_offset(connection, history.topic, at, LATEST)
        self.say(f"{history}: it ends at {offset}")
        self.cluster_state.checker(ReadsAreCommitted).end_offset_read(history, offset, self.name)

    async def read(self, runtime: Runtime, worker_id: int, history: PartitionHistory) -> None:
        """Fetch the first records of a partition from a worker."""
        async with self.connected(runtime, worker_id) as connection:
            await self.fetch(connection, history.topic, history.place, 0, 0)


class Interleaving:
    """One running crossing: its workers and partitions, and the faults it can cause."""

    def __init__(self, cluster_state: ReplicatedClusterState, fault: ActiveFault) -> None:
        self.cluster_state = cluster_state
        self.fault = fault
        self.draw = fault.draw
        self.world = fault.world
        self.client = InterleavingClient(cluster_state, "hand", fault.draw)
        self._internet = fault.world.internet
        self._held: list[Member] = []
        for member in cluster_state.workers:
            member.supervisor.calm = True  # a released worker starts soon

    # Workers and partitions

    def workers(self) -> list[int]:
        """Return the ids of all workers in random order."""
        ids = [member.config.node_id for member in self.cluster_state.workers]
        self.draw.shuffle(ids)
        return ids

    async def topic(
        self,
        *replicas: Sequence[int],
        least: int = 1,
        name: str = REPLICATED,
        records: int = 3,
        is_flushed: bool = False,
    ) -> list[PartitionHistory]:
        """Create a topic and wait until all replicas are in sync and `records` are committed.

        The records are those of the scenario's producers.
        """
        configs = {MIN_ISR: str(least), "internal.segment.bytes": "1000000"}
        if is_flushed:
            configs["flush.messages"] = "1"
        place = await self.client.create(name, replicas, configs)
        assert place is not None
        cluster_history = self.cluster_state.cluster_history
        histories = [
            cluster_history.history(place.topic_id, index) for index in range(len(replicas))
        ]
        await self.until(
            lambda: all(
                set(self.state(history).isr) == set(each) and len(history.committed) >= records
                for history, each in zip(histories, replicas, strict=True)
            )
        )
        return histories

    def all_serve(self) -> bool:
        """Return whether every worker serves clients and is unfenced."""
        is_live = self.cluster_state.cluster_history.image.is_live
        return all(
            each.serves and is_live(each.config.node_id) for each in self.cluster_state.workers
        )

    def state(self, history: PartitionHistory) -> PartitionImage:
        state = self.cluster_state.cluster_history.state(history)
        assert state is not None
        return state

    def partition(self, worker_id: int, history: PartitionHistory) -> Partition | None:
        """Return the worker's current partition object; None if it is down or has none."""
        node = self.cluster_state.members[worker_id].running
        if node is None or node.worker is None:
            return None
        with suppress(KafkaError):
            return node.worker.replica_manager.by_id(
                history.place.topic_id, history.place.partition
            )
        return None

    def leads(self, worker_id: int, history: PartitionHistory) -> bool:
        """Return whether the worker leads by the metadata and by its own state."""
        partition = self.partition(worker_id, history)
        return (
            self.state(history).leader == worker_id
            and partition is not None
            and partition.is_leader
        )

    def knows_leader(self, worker_id: int, history: PartitionHistory) -> bool:
        """Return whether the worker knows the leader that the metadata have."""
        partition = self.partition(worker_id, history)
        return partition is not None and partition.leader_id == self.state(history).leader

    def end(self, worker_id: int, history: PartitionHistory) -> int:
        replica = history.replicas.get(worker_id)
        return 0 if replica is None else replica.end

    def high_watermark(self, worker_id: int, history: PartitionHistory) -> int:
        """Return the high watermark that the worker knows; -1 if it is down."""
        partition = self.partition(worker_id, history)
        return -1 if partition is None else partition.high_watermark

    def starts_at(self, worker_id: int, history: PartitionHistory) -> int:
        """Return the log start offset of the worker's replica; -1 if it is down."""
        partition = self.partition(worker_id, history)
        return -1 if partition is None else partition.log.log_start_offset

    # Time

    async def until(self, is_so: Callable[[], bool], seconds: float = WITHIN_S) -> bool:
        with trio.move_on_after(seconds):
            while not is_so():
                await self.world.sleep(LOOK_S)
            return True
        return False

    async def some(self, most_s: float) -> None:
        await self.world.sleep(self.draw.uniform(0.0, most_s))

    # Faults

    def name(self, worker_id: int) -> str:
        return self.cluster_state.members[worker_id].name

    def kill(self, worker_id: int) -> None:
        """Kill the worker, and keep it down until it is released."""
        member = self.cluster_state.members[worker_id]
        member.supervisor.hold()
        self._held.append(member)
        stop_machine(self.fault, member.supervisor, "kill")

    def release(self, *worker_ids: int) -> None:
        """Restart killed workers: those named, or all."""
        for member in [*self._held]:
            if not worker_ids or member.config.node_id in worker_ids:
                self._held.remove(member)
                member.supervisor.release()

    def stall(self, source: str, target: str) -> None:
        """Hold packets from `source` to `target` until the link is healed."""
        self._internet.cut(source, target)

    def part(self, one: str, other: str) -> None:
        self._internet.cut(one, other)
        self._internet.cut(other, one)

    def join(self, one: str, other: str) -> None:
        self._internet.heal(one, other)
        self._internet.heal(other, one)

    def part_from_controller(self, worker_id: int) -> None:
        """Cut the worker from the controller and reset its connections.

        The controller notices a reset at once, without waiting for the session timeout.
        """
        self.part(self.name(worker_id), CONTROLLER)
        self._internet.reset(self.name(worker_id), CONTROLLER)

    def clients(self) -> list[str]:
        return [name for name in self.world.machines if not name.startswith("node-")]

    def stall_replication(self, leader: int, follower: int) -> None:
        self.stall(self.name(leader), self.name(follower))

    def heal_replication(self, leader: int, follower: int) -> None:
        self._internet.heal(self.name(leader), self.name(follower))

    def slow_replication(self, leader: int, follower: int, seconds: float) -> None:
        self._internet.link(self.name(leader), self.name(follower)).delay_s = seconds

    def heal(self) -> None:
        """Restore all links of the network."""
        self._internet.heal_all()

    def slow_disk(self, worker_id: int, seconds: float) -> None:
        self.cluster_state.members[worker_id].supervisor.machine.faults.delay_s = seconds

    def disk_as_before(self, worker_id: int) -> None:
        self.slow_disk(worker_id, self.cluster_state.settings.disk_delay_s)


async def cut_damage(this: Interleaving) -> bool:
    """Let an eligible replica truncate damage, and kill it before it registers the loss.

    After the truncation the log shows no damage, and soon the replica is the only candidate for
    leader.
    """
    leader, eligible, *_ = this.workers()
    (history,) = await this.topic((leader, eligible), least=2, records=6)
    this.kill(eligible)
    if not await this.until(lambda: eligible in this.state(history).elr):
        return False
    machine = this.cluster_state.members[eligible].supervisor.machine
    folder = f"{DATA}/{history.topic}-{history.place.partition}"
    batches = naive_segments(machine.storage, folder)[0].batches
    batch = this.draw.choice(batches[1:])
    path = f"{folder}/{file_name(0, LOG)}"
    machine.storage.flip(machine.storage.file(path), batch.position + HEADER_BYTES, 0)
    machine.say(f"a bit of {path} at {batch.position + HEADER_BYTES} flips")
    replica = history.replicas[eligible]
    replica.rotten = replica.damaged = replica.was_damaged = True
    machine.stop_at_disk_change(this.draw.randint(1, 6), "kill", folder)
    runs = machine.runs
    this.release(eligible)
    is_cut = await this.until(lambda: machine.runs > runs and not machine.running)
    if not await this.until(lambda: machine.runs > runs + 1 and this.all_serve()):
        return False
    this.kill(leader)
    await this.until(lambda: this.leads(eligible, history), 1.0)
    return is_cut


class Interleavings:
    def __init__(self, cluster_state: ReplicatedClusterState) -> None:
        self.kinds: dict[str, FaultFunction] = {
            name: partial(_play, cluster_state, interleaving)
            for name, interleaving in (INTERLEAVINGS | LATER_CROSSINGS).items()
        }


async def _play(
    cluster_state: ReplicatedClusterState,
    interleaving: Callable[[Interleaving], Awaitable[bool]],
    fault: ActiveFault,
) -> None:
    this = Interleaving(cluster_state, fault)
    await this.until(this.all_serve)
    if await interleaving(this):
        fault.count()
    this.heal()
    this.release()


async def uneven(this: Interleaving) -> bool:
    """Elect the replica with fewer records, which appends none, and then the one with more.

    leader dies -> short leads, long does not notice -> short is fenced, long leads untruncated
    """
    leader, short, long, *_ = this.workers()
    (history,) = await this.topic((leader, short, long))
    this.stall_replication(leader, short)
    if not await this.until(lambda: this.end(long, history) > this.end(short, history)):
        return False
    this.part(this.name(short), this.name(long))
    for client in this.clients():
        this.part(this.name(short), client)
    this.kill(leader)
    if not await this.until(lambda: this.leads(short, history)):
        return False
    this.part_from_controller(short)
    if not await this.until(lambda: this.leads(long, history)):
        return False
    this.join(this.name(short), CONTROLLER)  # it receives the metadata before any fetch
    await this.until(lambda: this.knows_leader(short, history))
    return True


async def unwanted_cut(this: Interleaving) -> bool:
    """Elect a follower that is about to truncate its log, as its leader's log cannot be read.

    leader dies -> short leads, long is about to truncate -> short is offline, long leads
    """
    leader, short, long, *_ = this.workers()
    await this.topic((short, long), name="beside")  # keeps a replica connection between the two
    (history,) = await this.topic((leader, short, long))
    this.stall_replication(leader, short)
    if not await this.until(lambda: this.end(long, history) > this.end(short, history)):
        return False
    slow_s = this.draw.choice([0.2, 0.5])
    this.slow_disk(long, slow_s)
    this.kill(leader)
    if not await this.until(lambda: this.leads(short, history)):
        return False
    await this.some(0.02)
    faults = this.cluster_state.members[short].supervisor.machine.faults
    faults.failing_read = lambda path: f"/{REPLICATED}-0/" in path
    with trio.move_on_after(WITHIN_S):
        while this.state(history).leader == short:
            await this.client.does(lambda r: this.client.read(r, short, history))
    faults.failing_read = None
    if not await this.until(lambda: this.leads(long, history)):
        return False
    # The follower writes the ledger and the checkpoints; after that the truncation is due.
    await this.world.sleep(2 * slow_s)
    this.disk_as_before(long)
    this.kill(short)
    return True


async def impatient(this: Interleaving) -> bool:
    """Append records that stay uncommitted beyond the producers' timeout, and then lose them."""
    leader, one, other, *_ = this.workers()
    (history,) = await this.topic((leader, one, other), least=this.draw.choice([1, 2]))
    for _ in range(this.draw.randint(1, 3)):
        this.stall_replication(leader, one)
        this.stall_replication(leader, other)
        end = this.end(leader, history)
        if not await this.until(lambda end=end: this.end(leader, history) > end):  # type: ignore[misc]
            return False
        await this.world.sleep(this.draw.uniform(0.2, 0.9))
        if this.draw.random() < 0.5:
            this.kill(leader)
            await this.until(lambda: this.state(history).leader != leader)
            return True
        this.heal()
        await this.some(0.2)
    return True


async def pair(this: Interleaving) -> bool:
    """Produce to two partitions: one does not commit, the leader of the other changes twice.

    first leads again -> another record takes the offset of the sent one -> the old leader leads
    """
    first, leader, slow, *_ = this.workers()
    moving, still = await this.topic((first, leader), (leader, slow), records=0)
    this.kill(first)
    if not await this.until(lambda: this.leads(leader, moving)):
        return False
    this.release(first)
    if not await this.until(lambda: set(this.state(moving).isr) == {first, leader}):
        return False
    for client in this.clients():  # both partitions get only the records of this crossing
        if client != this.client.name:
            for worker in (first, leader):
                this.part(this.name(worker), client)
    await this.world.sleep(NOTICED_S)
    end = this.end(leader, moving)
    this.slow_replication(leader, first, 0.5)
    this.stall_replication(leader, slow)
    sender = InterleavingClient(this.cluster_state, "sender", this.draw)
    done = trio.Event()

    async def send() -> None:
        await sender.does(lambda r: sender.produce(r, leader, [still, moving], ALL))
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        if await this.until(lambda: this.end(leader, moving) > end):
            await this.client.elect(leader, moving)
            if await this.until(lambda: this.leads(first, moving)):
                this.slow_replication(leader, first, this.cluster_state.settings.delay_s)
                await this.client.does(lambda r: this.client.produce(r, first, [moving], 1))
                await this.until(lambda: _same_at(moving, end, first, leader), 1.0)
                this.kill(first)
                await this.until(lambda: this.leads(leader, moving), 1.0)
        this.heal()
        await done.wait()
    return True


def _same_at(history: PartitionHistory, offset: int, one: int, other: int) -> bool:
    replica = [history.replicas[worker].epochs.get(offset) for worker in (one, other)]
    return replica[0] is not None and replica[0] == replica[1]


async def unclean(this: Interleaving) -> bool:
    """Elect a replica uncleanly while the longest is down; then let the longest return and lead."""
    longest, other, *_ = this.workers()
    (history,) = await this.topic((longest, other))
    this.kill(other)
    end = this.end(longest, history)
    if not await this.until(lambda: this.high_watermark(longest, history) > end + 3):
        return False
    await this.world.sleep(NOTICED_S)  # checkpoints are written
    this.kill(longest)
    if not await _led_uncleanly(this, history, other):
        return False
    for client in this.clients():  # mostly the unclean leader gets no further records
        if this.draw.random() < 0.8:
            this.part(this.name(other), client)
    this.release(longest)
    if not await this.until(lambda: longest in this.state(history).isr):
        return False
    await this.some(0.1)
    this.kill(other)
    return await this.until(lambda: this.leads(longest, history))


async def half_way(this: Interleaving) -> bool:
    """Elect uncleanly, or kill, a replica that is catching up and knows the leader's log end.

    The replica fetches one batch at a time.
    """
    longest, other, *_ = this.workers()
    (history,) = await this.topic((longest, other))
    this.kill(other)
    end = this.end(longest, history)
    if not await this.until(lambda: this.high_watermark(longest, history) > end + 8):
        return False
    for client in this.clients():
        this.part(this.name(longest), client)
    this.slow_replication(longest, other, 0.05)
    this.release(other)
    if not await this.until(lambda: this.end(other, history) > end):
        return False
    is_killed = this.draw.random() < 0.5
    await this.world.sleep(NOTICED_S if is_killed else this.draw.uniform(0.0, 0.2))
    is_half_way = this.end(other, history) < this.end(longest, history)
    if is_killed:
        this.kill(other)
        await this.some(0.2)
        this.release(other)
        return is_half_way
    this.kill(longest)
    return await _led_uncleanly(this, history, other) and is_half_way


async def _led_uncleanly(this: Interleaving, history: PartitionHistory, worker_id: int) -> bool:
    """Start a worker and elect it uncleanly, once the partition has no leader."""
    if not await this.until(lambda: this.state(history).leader < 0):
        return False
    this.release(worker_id)
    await this.until(lambda: this.cluster_state.cluster_history.image.is_live(worker_id))
    await this.client.elect(worker_id, history, unclean=True)
    return await this.until(lambda: this.leads(worker_id, history))


async def late_isr_request(this: Interleaving) -> bool:
    """Delay an AlterPartition request until another worker has left the ISR and returned."""
    leader, staying, joining, *_ = this.workers()
    (history,) = await this.topic((leader, staying, joining))
    if not await _about_to_join(this, history, leader, joining):
        return False
    this.stall_replication(leader, joining)
    this.stall_replication(leader, staying)
    this.part_from_controller(staying)
    if not await this.until(lambda: staying not in this.state(history).isr):
        return False
    await this.some(0.1)
    this.join(this.name(staying), CONTROLLER)
    await this.world.sleep(LATE_S + 0.2)
    return True


async def fenced_isr_request(this: Interleaving) -> bool:
    """Delay an AlterPartition request until the worker that it adds to the ISR is fenced."""
    leader, staying, joining, *_ = this.workers()
    (history,) = await this.topic((leader, staying, joining))
    if not await _about_to_join(this, history, leader, joining):
        return False
    this.kill(joining)
    await this.world.sleep(LATE_S + 0.2)
    return True


async def _about_to_join(
    this: Interleaving, history: PartitionHistory, leader: int, joining: int
) -> bool:
    """Make the leader send an AlterPartition request that adds `joining`, delayed by `LATE_S`.

    The link is slow only for that request; earlier requests have arrived. Return whether the
    request was sent.
    """
    this.kill(joining)
    if not await this.until(lambda: joining not in this.state(history).isr):
        return False
    this.stall_replication(leader, joining)
    this.release(joining)
    if not await this.until(lambda: this.cluster_state.cluster_history.image.is_live(joining)):
        return False
    await this.world.sleep(0.1)  # the leader knows that it is live, and waits for its fetches
    link = this.world.internet.link(this.name(leader), CONTROLLER)
    link.delay_s = LATE_S
    this.heal_replication(leader, joining)

    def is_asked_for() -> bool:
        partition = this.partition(leader, history)
        request = (
            None
            if partition is None or not partition.leader_state
            else partition.leader_state.proposed
        )
        return request is not None and joining in request.isr

    asked = await this.until(is_asked_for, 1.0)
    await this.world.sleep(LOOK_S)
    link.delay_s = this.world.internet.default.delay_s
    return asked


async def heir(this: Interleaving) -> bool:
    """Kill a leader whose high watermark is above the one that its successor knows.

    The log of an out-of-sync follower ends between the two high watermarks.
    """
    leader, successor, witness, late = this.workers()
    (history,) = await this.topic((leader, successor, witness, late))
    this.kill(late)
    if not await this.until(lambda: late not in this.state(history).isr):
        return False
    this.stall_replication(leader, late)
    this.release(late)
    for client in this.clients():
        if client != this.client.name:
            this.part(this.name(leader), client)

    def known(worker_id: int) -> int:
        return this.high_watermark(worker_id, history)

    def end(worker_id: int) -> int:
        return this.end(worker_id, history)

    everything = (leader, successor, witness)
    if not await this.until(lambda: len({*map(known, everything), *map(end, everything)}) == 1):
        return False
    await this.client.does(lambda r: this.client.burst(r, leader, history, BURST))
    if not await this.until(lambda: end(successor) == end(leader)):
        return False
    this.stall_replication(leader, successor)  # it has all records, but not the high watermark
    if not await this.until(lambda: known(leader) == end(leader) > known(successor), 1.0):
        return False
    this.heal_replication(leader, late)
    if not await this.until(lambda: known(successor) <= end(late), 2.0):
        return False
    this.stall_replication(leader, late)
    this.part(this.name(successor), this.name(witness))
    this.slow_replication(successor, late, 0.1)
    for client in this.clients():
        this.part(this.name(successor), client)
    is_behind = end(late) < end(successor)
    this.kill(leader)
    if not await this.until(lambda: this.leads(successor, history)):
        return False
    this.join(this.name(successor), this.client.name)
    await this.client.does(lambda r: this.client.ask_end(r, successor, history))
    await this.until(lambda: late in this.state(history).isr, 2.0)
    return is_behind


async def left_behind(this: Interleaving) -> bool:
    """Cut a worker from the controller while topics that it has replicas of are deleted."""
    behind, one, other, *_ = this.workers()
    names = [f"gone-{number}" for number in range(GONE)]
    await this.topic((one, other, behind))
    for name in names[:2]:
        await this.topic((behind, one), name=name, records=0)
    this.part(this.name(behind), CONTROLLER)
    for name in names[2:]:
        await this.client.create(name, [(one, other)], {})
    for name in names:
        if this.draw.random() < 0.8:
            await this.client.delete(name, one)
    await this.some(0.5)
    return True


async def unregistered(this: Interleaving) -> bool:
    """Unregister a worker, mostly the only replica of a partition, and perhaps kill it later.

    The controller compares the logs that the next process registers with all earlier registrations.
    """
    alone, *others = this.workers()
    await this.topic((alone, *others))
    await this.topic((alone,), name="alone")
    await unregister(this.cluster_state, this.fault)
    if this.draw.random() < 0.7:
        await this.until(lambda: this.cluster_state.cluster_history.image.is_live(alone))
        await this.some(0.3)
        this.kill(alone)
    return False  # `unregister` counts the fault


async def rebooted_isr_request(this: Interleaving) -> bool:
    """Delay an AlterPartition request until the joining worker is another process.

    That process has fewer records than the one named in the request, as the machine lost power.
    """
    leader, staying, joining, *_ = this.workers()
    (history,) = await this.topic((leader, staying, joining))
    if not await _about_to_join(this, history, leader, joining):
        return False
    this.stall_replication(leader, joining)
    supervisor = this.cluster_state.members[joining].supervisor
    this.kill(joining)
    stop_machine(this.fault, supervisor, "power")
    this.release(joining)
    await this.world.sleep(LATE_S + 0.2)
    return True


async def cut_back(this: Interleaving) -> bool:
    """Replace a leader that has synced more than its successor, and stop it after its truncation.

    The next start must handle checkpoints above the truncated end, and records that a loss of power
    restores.
    """
    leader, successor, other, *_ = this.workers()
    (history,) = await this.topic((leader, successor, other), is_flushed=True)
    for client in this.clients():
        if client != this.client.name:
            for worker in (leader, successor, other):
                this.part(this.name(worker), client)
    for worker in (successor, other):
        this.part(this.name(leader), this.name(worker))
    await this.client.does(lambda r: this.client.burst(r, leader, history, BURST))
    await this.world.sleep(NOTICED_S)  # the batches are synced, and the checkpoints written
    this.part_from_controller(leader)
    if not await this.until(lambda: this.leads(successor, history)):
        return False
    await this.client.does(lambda r: this.client.burst(r, successor, history, BURST))
    this.join(this.name(leader), CONTROLLER)
    if not await this.until(lambda: this.knows_leader(leader, history)):
        return False
    end = this.end(leader, history)
    last = history.replicas[leader].epochs.get(end - 1)
    this.slow_disk(leader, 0.1)  # time passes between a change of a file and its sync
    for worker in (successor, other):
        this.join(this.name(leader), this.name(worker))
    if not await this.until(lambda: history.replicas[leader].epochs.get(end - 1) != last):
        return False
    stop_machine(
        this.fault,
        this.cluster_state.members[leader].supervisor,
        this.draw.choice(["kill", "kill", "power"]),
    )
    this.disk_as_before(leader)
    return True


async def handover(this: Interleaving) -> bool:
    """Queue appends at a leader before and after it learns that another replica leads."""
    successor, leader, other, *_ = this.workers()
    (history,) = await this.topic((successor, leader, other), is_flushed=True)
    this.kill(successor)
    if not await this.until(lambda: this.leads(leader, history)):
        return False
    this.release(successor)
    if not await this.until(lambda: successor in this.state(history).isr):
        return False
    this.slow_disk(leader, this.draw.choice([0.05, 0.2]))
    senders = [
        InterleavingClient(this.cluster_state, f"sender-{n}", this.draw) for n in range(SENDERS)
    ]

    async def send(sender: InterleavingClient) -> None:
        await this.some(0.2)
        await sender.does(lambda r: sender.burst(r, leader, history, BURST))

    async with trio.open_nursery() as nursery:
        for sender in senders:
            nursery.start_soon(send, sender)
        await this.some(0.1)
        await this.client.elect(other, history)
        await this.until(lambda: this.leads(successor, history), 1.0)
    this.disk_as_before(leader)
    await this.some(0.3)
    return True


async def namesake(this: Interleaving) -> bool:
    """Delete and create a topic, and kill a worker before it has written any checkpoint of it."""
    one, other, *_ = this.workers()
    await this.topic((other, one))
    await this.topic((one, other), name="again", records=8)
    await this.world.sleep(NAMESAKE_NOTED_S)
    await this.client.delete("again", one)
    if "again" not in this.cluster_state.topic_outcomes.deleted:
        return False
    (history,) = await this.topic((one, other), name="again", records=0)
    await this.client.does(lambda r: this.client.burst(r, one, history, 1))
    this.kill(one)
    this.release(one)
    await this.some(0.1)
    return True


async def deleted_ahead(this: Interleaving) -> bool:
    """Replace a leader, and move the successor's log start to the old leader's log end.

    The successor's leader epochs then do not cover the last records of the other log.
    """
    leader, successor, *_ = this.workers()
    (history,) = await this.topic((leader, successor))
    for client in this.clients():
        if client != this.client.name:
            for worker in (leader, successor):
                this.part(this.name(worker), client)
    this.part(this.name(leader), this.name(successor))
    await this.client.does(lambda r: this.client.burst(r, leader, history, BURST))
    this.part_from_controller(leader)
    if not await this.until(lambda: this.leads(successor, history)):
        return False
    end = this.end(leader, history)
    await this.client.does(lambda r: this.client.burst(r, successor, history, 2 * BURST))
    if not await this.until(lambda: this.high_watermark(successor, history) > end):
        return False
    await this.client.does(lambda r: this.client.delete_records(r, successor, history, end))
    this.join(this.name(leader), CONTROLLER)  # it receives the metadata before any client request
    if not await this.until(lambda: this.knows_leader(leader, history)):
        return False
    this.heal()
    return await this.until(lambda: this.starts_at(leader, history) >= end)


INTERLEAVINGS: Final[dict[str, Callable[[Interleaving], Awaitable[bool]]]] = {
    "uneven": uneven,
    "unwanted cut": unwanted_cut,
    "impatient": impatient,
    "pair": pair,
    "unclean": unclean,
    "half way": half_way,
    "late wish": late_isr_request,
    "dead wish": fenced_isr_request,
    "heir": heir,
    "left behind": left_behind,
    "reborn wish": rebooted_isr_request,
    "cut back": cut_back,
    "namesake": namesake,
    "handover": handover,
    "unregister": unregistered,
}
# Each is drawn from its own stream, so that the worlds of existing seeds do not change.
LATER_CROSSINGS: Final[dict[str, Callable[[Interleaving], Awaitable[bool]]]] = {
    "cut damage": cut_damage,
    "deleted ahead": deleted_ahead,
}
