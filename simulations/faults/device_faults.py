"""Faults of disks and clocks: syncs and reads fail, bits flip, the wall clock jumps."""

import errno
from itertools import pairwise
from random import Random
from typing import Final

import trio

from metaquorum.dataplane.log.recovery.checkpoints import decode_offsets
from metaquorum.dataplane.log.segments.names import RECOVERY_POINT_CHECKPOINT
from metaquorum.runtime import Runtime, sleep
from metaquorum.simulations.checkers.delivery import OtherDirectoriesLive
from metaquorum.simulations.checkers.log_files import NaiveBatch, Segment, naive_segments
from metaquorum.simulations.checkers.metadata import AcknowledgedChangesStay
from metaquorum.simulations.faults.node_faults import Fault, FaultContext, count_losses
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.harness.environment import Environment
from metaquorum.simulations.harness.history import PartitionOf, Rot, Topic
from metaquorum.simulations.harness.node import DATA_DIR, LOG_DIRS, log_folder
from metaquorum.simulations.workloads.consumer import LATEST, list_offset
from metaquorum.simulations.workloads.several_rows import SeveralRows
from metaquorum.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from metaquorum.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.records import Record, encode_batch

# Jumps in seconds. Producers' clocks do not jump: message.timestamp.after.max.ms is an hour.
JUMPS_S: Final = (-3000.0, -20.0, -0.5, 0.5, 20.0, 3000.0, 172_800.0)
# Most segments that one fault damages.
FLIPS: Final = 3
# The batch length is followed by epoch and magic, which no CRC covers, and then by the CRC.
_CHECKSUM_AT, _RECORDS_AT = 17, 61
_LOW_BYTE: Final = 3
_TOPIC_STATES_SINCE: Final = 6  # version of DeleteTopics
# Time within which partitions on intact devices must be served while another device fails.
INSPECTION_S: Final = 20.0
# Timeout of the wait for segments or batches that can be damaged.
ROT_WITHIN_S: Final = 3.0
FAILING_LOG: Final = "failing log"
HANGING_DEVICE: Final = "hanging device"


async def sync_failure(fault_context: FaultContext) -> None:
    """Let syncs of some files, or of all, fail, and then cut the power.

    In half of the cases the process is killed and restarted first: the pages that the kernel could
    not write count as clean, so the new process reads data that is not durable.
    """
    draw, faults = fault_context.draw, fault_context.machine.faults
    of = draw.choice(["metadata", "topic-", "topic-0-0", ".log", "index", "checkpoint", "/data"])
    share, bad = draw.choice([1.0, 0.3]), Random(draw.random())
    before = faults.happened.get("sync failed", 0)
    fault_context.disk_impaired = True
    fault_context.machine.say(f"disk cannot sync files with {of} in their path")
    faults.failing_sync = lambda path: of in path and bad.random() < share
    await fault_context.environment.world.sleep(draw.uniform(0.1, 2.0))
    faults.failing_sync = None
    if faults.happened.get("sync failed", 0) > before:
        fault_context.count("sync failure")
    if draw.random() < 0.5:  # data that is not durable stays readable until the power cut
        fault_context.machine.kill()
        await fault_context.pause_between()
        await fault_context.up()
        await fault_context.environment.world.sleep(draw.uniform(0.5, 5.0))
    fault_context.machine.power_cut()
    count_losses(fault_context)
    await fault_context.pause_between()
    await fault_context.up()
    fault_context.disk_impaired = False


async def forgotten_sync_failure(fault_context: FaultContext) -> None:
    """Let syncs of logs fail, kill the process, and cut the power some time after it is back.

    The bytes of the failed syncs stay readable until then, and become durable only if they are
    written again.
    """
    draw, faults = fault_context.draw, fault_context.machine.faults
    before = faults.happened.get("sync failed", 0)
    fault_context.disk_impaired = True
    faults.failing_sync = lambda path: path.endswith(".log")
    await fault_context.environment.world.sleep(draw.uniform(0.05, 0.3))
    faults.failing_sync = None
    if faults.happened.get("sync failed", 0) > before:
        fault_context.count("sync failure")
    fault_context.machine.kill()
    await fault_context.up()
    await fault_context.environment.world.sleep(draw.uniform(0.1, 0.8))
    fault_context.machine.power_cut()
    count_losses(fault_context)
    await fault_context.pause_between()
    await fault_context.up()
    fault_context.disk_impaired = False


async def read_failure(fault_context: FaultContext) -> None:
    """Let reads of some files, or of all, fail for a while, perhaps while the node starts.

    Then the disk works again, and the node is restarted.
    """
    draw, faults = fault_context.draw, fault_context.machine.faults
    of = draw.choice(["metadata", "topic-", "topic-0-0", ".log", "index", "checkpoint", "/data"])
    share, bad = draw.choice([1.0, 0.3]), Random(draw.random())
    before = faults.happened.get("reads failed", 0)
    fault_context.disk_impaired = True
    fault_context.machine.say(f"disk cannot read files with {of} in their path")
    faults.failing_read = lambda path: of in path and bad.random() < share
    if draw.random() < 0.5:
        fault_context.machine.kill()
        await fault_context.node.start()
    await fault_context.environment.world.sleep(draw.uniform(0.1, 2.0))
    faults.failing_read = None
    if faults.happened.get("reads failed", 0) > before:
        fault_context.count("read failure")
    if draw.random() < 0.5:
        await fault_context.node.stop()
    fault_context.machine.kill()
    await fault_context.pause_between()
    fault_context.disk_impaired = False
    await fault_context.up()


async def unreadable_start(fault_context: FaultContext) -> None:
    """Kill the node, and let reads of segments fail during its first start, but not its second."""
    faults, bad = fault_context.machine.faults, Random(fault_context.draw.random())
    share = fault_context.draw.choice([1.0, 0.5])
    before = faults.happened.get("reads failed", 0)
    fault_context.machine.kill()
    fault_context.disk_impaired = True
    faults.failing_read = lambda path: path.endswith(".log") and bad.random() < share
    await fault_context.node.start()
    await fault_context.environment.world.sleep(fault_context.draw.uniform(0.0, 0.3))
    faults.failing_read = None
    if faults.happened.get("reads failed", 0) > before:
        fault_context.count("read failure")
    fault_context.machine.kill()
    await fault_context.pause_between()
    fault_context.disk_impaired = False
    await fault_context.up()


async def bit_rot(fault_context: FaultContext) -> None:
    """Flip bits in indexes, or in the CRC and records of batches, of complete, synced segments."""
    stops = fault_context.draw.random() < 0.6
    if stops:
        fault_context.machine.kill()
    found = _sealed(fault_context)
    for topic, partition, segment in fault_context.draw.sample(found, min(len(found), FLIPS)):
        # Compaction decodes batches; lookups by timestamp read the indexes.
        kinds = ["batch", "index"] if topic.is_compacted else ["index", "timeindex", "timeindex"]
        kind = fault_context.draw.choice([*kinds, "batch"])
        if kind == "batch":
            _rot_batch(fault_context, topic, partition, segment)
        else:
            _rot_index(fault_context, f"{segment.path}.{kind}")
    await fault_context.pause_between()
    await fault_context.up()


async def index_rot(fault_context: FaultContext) -> None:
    """Flip a bit in the offset index of each segment that is complete and synced."""
    with trio.move_on_after(ROT_WITHIN_S):
        while len(_sealed(fault_context)) < FLIPS:
            await fault_context.environment.world.sleep(0.01)
    if fault_context.draw.random() < 0.5:
        fault_context.machine.kill()
    for _, _, segment in _sealed(fault_context):
        _rot_index(fault_context, f"{segment.path}.index")
    await fault_context.up()


def _sealed(fault_context: FaultContext) -> list[tuple[Topic, int, Segment]]:
    """Return segments below the recovery point: recovery must not treat them as torn tails."""
    storage = fault_context.machine.storage
    points: dict[tuple[str, int], int] = {}
    for log_dir in LOG_DIRS:
        try:
            data = bytes(storage.file(f"{log_dir}/{RECOVERY_POINT_CHECKPOINT}").data)
            points |= decode_offsets(data)
        except (FileNotFoundError, ValueError):
            continue
    found = []
    for topic in fault_context.environment.history.live_topics:
        for partition in range(topic.partitions):
            segments = naive_segments(storage, log_folder(storage, topic.name, partition))
            synced = points.get((topic.name, partition), 0)
            for segment, following in pairwise(segments):
                if segment.batches and following.base_offset < synced:
                    found.append((topic, partition, segment))
    return found


def _rot_batch(fault_context: FaultContext, topic: Topic, partition: int, segment: Segment) -> None:
    batch: NaiveBatch = fault_context.draw.choice(segment.batches)
    in_header = fault_context.draw.random() < 0.2
    start = _CHECKSUM_AT if in_header else _RECORDS_AT
    end = _RECORDS_AT if in_header else batch.size
    if start >= end:
        return
    place = PartitionOf(topic.topic_id, partition)
    rot = Rot(batch.base_offset, batch.last_offset, in_header)
    fault_context.environment.history.rotten.setdefault(place, []).append(rot)
    _flip(
        fault_context,
        f"{segment.path}.log",
        batch.position + fault_context.draw.randrange(start, end),
    )


async def rot_before_cleaning(fault_context: FaultContext) -> None:
    """Flip a bit in each value of some batches that compaction has not read yet."""
    with trio.move_on_after(ROT_WITHIN_S):
        while not (found := _uncompressed(fault_context)):
            await fault_context.environment.world.sleep(0.01)
    if not found:
        return
    stops = fault_context.draw.random() < 0.5
    if stops:
        fault_context.machine.kill()
    for topic, partition, segment, batch in found[-FLIPS:]:
        place = PartitionOf(topic.topic_id, partition)
        rot = Rot(batch.base_offset, batch.last_offset, in_header=False)
        fault_context.environment.history.rotten.setdefault(place, []).append(rot)
        for position in _value_ends(fault_context, place, segment, batch):
            _flip(fault_context, f"{segment.path}.log", position)
    if stops:
        await fault_context.pause_between()
    await fault_context.up()


def _uncompressed(fault_context: FaultContext) -> list[tuple[Topic, int, Segment, NaiveBatch]]:
    """Return uncompressed batches of several records below the recovery point, newest last."""
    found = [
        (topic, partition, segment, batch)
        for topic, partition, segment in _sealed(fault_context)
        for batch in segment.batches
        if batch.last_offset > batch.base_offset
        and len(_value_ends(fault_context, PartitionOf(topic.topic_id, partition), segment, batch))
        > 1
    ]
    return sorted(found, key=lambda each: each[3].base_offset)


def _value_ends(
    fault_context: FaultContext, place: PartitionOf, segment: Segment, batch: NaiveBatch
) -> list[int]:
    """Return the positions, in the segment, of the last byte of each value of the batch."""
    data = bytes(fault_context.machine.storage.file(f"{segment.path}.log").data)
    start, end = batch.position, batch.position + batch.size
    found = (
        (data.find(attempt.value, start, end), len(attempt.value))
        for attempt in fault_context.environment.history.attempts.values()
        if attempt.place == place
    )
    return [at + size - 1 for at, size in found if at >= 0]


def _rot_index(fault_context: FaultContext, path: str) -> None:
    try:
        size = len(fault_context.machine.storage.file(path).data)
    except FileNotFoundError:
        return
    if size:
        fault_context.environment.history.rotten_indexes.add(path.rsplit(".", 1)[0])
        position = fault_context.draw.randrange(size)
        if fault_context.draw.random() < 0.7:
            position |= _LOW_BYTE  # low byte of a field, where a flip stays within the log's range
        _flip(fault_context, path, position)


def _flip(fault_context: FaultContext, path: str, position: int) -> None:
    bit = fault_context.draw.randrange(8)
    fault_context.machine.say(f"bit {bit} of byte {position} of {path} flips")
    storage = fault_context.machine.storage
    storage.flip(storage.file(path), position, bit)
    fault_context.count("bit rot")


async def clock_jump(fault_context: FaultContext) -> None:
    """Let the wall clock jump, and in half of the cases jump back later."""
    jump = fault_context.draw.choice(JUMPS_S)
    await _jump(fault_context, jump)
    fault_context.count("clock jump")
    if fault_context.draw.random() < 0.5:
        await fault_context.environment.world.sleep(fault_context.draw.uniform(0.1, 2.0))
        await _jump(fault_context, -jump)


async def _jump(fault_context: FaultContext, seconds: float) -> None:
    fault_context.machine.say(f"clock jumps by {seconds} s")
    fault_context.machine.clock.jump(seconds)
    if seconds > 0:
        fault_context.environment.jumped_s += seconds
    await fault_context.environment.world.sleep(0)


async def broken_device(fault_context: FaultContext) -> None:
    """Let one of several log directories fail or be full; the others must be served."""
    draw, faults = fault_context.draw, fault_context.machine.faults
    broken = draw.choice([path for path in LOG_DIRS if path != DATA_DIR])
    number = draw.choice([errno.EIO, errno.EIO, errno.ENOSPC])
    before = faults.happened.get("changes refused", 0)
    fault_context.machine.say(f"{broken} fails with {errno.errorcode[number]}")
    faults.refusing = lambda path: number if path.startswith(f"{broken}/") else 0
    if draw.random() < 0.3:
        fault_context.machine.kill()
        await fault_context.up()
    await fault_context.environment.world.sleep(draw.uniform(0.3, 1.5))
    if fault_context.environment.settings.several_log_dirs:
        others = [path for path in LOG_DIRS if path != broken]
        await fault_context.environment.run(
            "inspector", Inspector(fault_context.environment, others).run
        )
    if faults.happened.get("changes refused", 0) > before:
        fault_context.count("broken device")
    faults.refusing = None
    if number == errno.EIO and draw.random() < 0.5:
        fault_context.machine.power_cut()
        count_losses(fault_context)
    else:
        fault_context.machine.kill()
    await fault_context.pause_between()
    await fault_context.up()


async def failing_log(fault_context: FaultContext) -> None:
    """Let a log write of a Produce request fail; later rows are for the same log directory.

    The fault draws from a separate random stream, so the draws of other faults do not change.
    """
    world = fault_context.environment.world
    draw, faults = world.stream(FAILING_LOG), fault_context.machine.faults
    client = SeveralRows(fault_context.environment, faults, draw)
    await fault_context.environment.run("rows", client.run)
    faults.refusing = None
    if client.refused:
        fault_context.count(FAILING_LOG)
    if draw.random() < 0.5:
        fault_context.machine.power_cut()
        count_losses(fault_context)
    else:
        fault_context.machine.kill()
    await fault_context.up()


async def hanging_device(fault_context: FaultContext) -> None:
    """Let calls to one of several log directories not return; the others must be used meanwhile.

    The fault draws from a separate random stream, so the draws of other faults do not change.
    """
    world = fault_context.environment.world
    draw, faults = world.stream(HANGING_DEVICE), fault_context.machine.faults
    hanging = draw.choice([path for path in LOG_DIRS if path != DATA_DIR])
    before = faults.happened.get("calls that hang", 0)
    others = [path for path in LOG_DIRS if path != hanging]
    changer = TopicChanger(fault_context.environment, others)
    await fault_context.environment.run(TopicChanger.NAME, changer.prepare)
    fault_context.machine.say(f"{hanging} hangs")
    faults.hanging = lambda path: path == hanging or path.startswith(f"{hanging}/")
    await world.sleep(draw.uniform(0.3, 1.5))
    await fault_context.environment.run(
        "inspector", Inspector(fault_context.environment, others).run
    )
    await fault_context.environment.run(TopicChanger.NAME, changer.run)
    fault_context.machine.say(f"{hanging} responds again")
    faults.hanging = None
    if faults.happened.get("calls that hang", 0) > before:
        fault_context.count(HANGING_DEVICE)
    await world.sleep(draw.uniform(0.0, 3.0))
    if draw.random() < 0.5:
        fault_context.machine.power_cut()
        count_losses(fault_context)
    else:
        fault_context.machine.kill()
    await fault_context.pause_between()
    await fault_context.up()


class TopicChanger:
    """Client that creates, uses and deletes a topic, twice, while a device hangs."""

    NAME: Final = "changer"
    PARTITIONS: Final = 4
    APPENDING_S: Final = 0.2  # within which appends begin that will hang

    def __init__(self, environment: Environment, log_dirs: list[str]) -> None:
        """Check that each partition of the topics is served from `log_dirs` soon."""
        self.environment = environment
        self._log_dirs = log_dirs
        self._live = environment.checker(OtherDirectoriesLive)
        self._draw = environment.world.stream(f"{self.NAME} {environment.world.now}")

    async def prepare(self, runtime: Runtime) -> None:
        """Create the first topic before the device hangs: some of its logs are on that device."""
        self.environment.checker(AcknowledgedChangesStay).create_asked(self.NAME)
        try:
            connection = await self.environment.connect(runtime, self.NAME, self._draw)
            try:
                await self._create(runtime, connection)
            finally:
                connection.close()
        except BROKEN as error:
            self.environment.world.say(self.NAME, repr(error))

    async def run(self, runtime: Runtime) -> None:
        """Change two topics of one name: the logs of the first may not be deleted yet."""
        left = ["the first topic", "the second topic"]
        with trio.move_on_after(INSPECTION_S):
            while left:
                try:
                    connection = await self.environment.connect(runtime, self.NAME, self._draw)
                    try:
                        while left:
                            topic = await self._create(runtime, connection)
                            await self._delete_while_written(runtime, connection, topic)
                            left.pop()
                    finally:
                        connection.close()
                except BROKEN as error:
                    self.environment.world.say(self.NAME, repr(error))
                    await sleep(runtime.clock, 0.2)
        self._live.inspected(left, INSPECTION_S)

    async def _create(self, runtime: Runtime, connection: ClientConnection) -> Topic:
        """Create the topic unless an earlier attempt has; wait until all of it is served."""
        asked = CreatableTopic(
            name=self.NAME,
            num_partitions=self.PARTITIONS,
            replication_factor=1,
            # Appends are made in worker threads.
            configs=[CreatableTopicConfig(name="flush.messages", value="1")],
        )
        message = CreateTopicsRequest(topics=[asked], timeout_ms=5000)
        answer = (await connection.call(ApiKey.CREATE_TOPICS, message)).topics[0]
        if answer.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise EOFError(f"create: {answer.error_code}")
        topic = Topic(self.NAME, bytes(answer.topic_id), self.PARTITIONS, {})
        for partition in range(self.PARTITIONS):
            while await list_offset(connection, topic, partition, LATEST) is None:
                await sleep(runtime.clock, 0.1)
        return topic

    async def _delete_while_written(
        self, runtime: Runtime, connection: ClientConnection, topic: Topic
    ) -> None:
        """Delete the topic while a batch is appended to each of its logs, which hangs for some."""
        producers = []
        try:
            for partition in range(self.PARTITIONS):
                producer = await self.environment.connect(runtime, self.NAME, self._draw)
                producers.append(producer)
                value = self.NAME.encode()
                records = encode_batch([Record(0, runtime.clock.now_ms(), None, value)])
                row = PartitionProduceData(index=partition, records=records)
                rows = TopicProduceData(
                    name=topic.name, topic_id=topic.topic_id, partition_data=[row]
                )
                message = ProduceRequest(acks=1, timeout_ms=5000, topic_data=[rows])
                await producer.send(ApiKey.PRODUCE, message)
            await sleep(runtime.clock, self.APPENDING_S)
            by_name = connection.version(ApiKey.DELETE_TOPICS) < _TOPIC_STATES_SINCE
            deletion = DeleteTopicsRequest(
                topics=[] if by_name else [DeleteTopicState(name=self.NAME)],
                topic_names=[self.NAME] if by_name else [],
                timeout_ms=5000,
            )
            await connection.call(ApiKey.DELETE_TOPICS, deletion)
        finally:
            for producer in producers:
                producer.close()


class Inspector:
    """Client that checks whether every partition in some log directories is served soon."""

    def __init__(self, environment: Environment, log_dirs: list[str]) -> None:
        self.environment = environment
        self._log_dirs = log_dirs
        self._live = environment.checker(OtherDirectoriesLive)
        self._draw = environment.world.stream(f"inspector {environment.world.now}")

    async def run(self, runtime: Runtime) -> None:
        dead = ["nothing was asked"]
        with trio.move_on_after(INSPECTION_S):
            while dead:
                try:
                    connection = await self.environment.connect(runtime, "inspector", self._draw)
                    try:
                        dead = await self._dead(connection)
                    finally:
                        connection.close()
                except BROKEN as error:
                    self.environment.world.say("inspector", repr(error))
                await sleep(runtime.clock, 0.2)
        self._live.inspected(dead, INSPECTION_S)

    async def _dead(self, connection: ClientConnection) -> list[str]:
        dead = []
        storage = self.environment.node.storage
        for topic in self.environment.history.live_topics:
            for partition in range(topic.partitions):
                folder = log_folder(storage, topic.name, partition)
                if not any(folder.startswith(f"{path}/") for path in self._log_dirs):
                    continue
                if PartitionOf(topic.topic_id, partition) in self.environment.history.rotten:
                    continue  # damage may take a whole partition offline
                if not naive_segments(storage, folder):
                    continue  # the log does not exist yet, and may be created in any directory
                if await list_offset(connection, topic, partition, LATEST) is None:
                    dead += [] if topic.delete_asked else [f"{topic}-{partition}"]
        return dead


DEVICE_FAULTS: Final[dict[str, Fault]] = {
    "sync failure": sync_failure,
    "forgotten sync failure": forgotten_sync_failure,
    "read failure": read_failure,
    "unreadable start": unreadable_start,
    "bit rot": bit_rot,
    "index rot": index_rot,
    "rot before cleaning": rot_before_cleaning,
    "clock jump": clock_jump,
    "broken device": broken_device,
    FAILING_LOG: failing_log,
    HANGING_DEVICE: hanging_device,
}
