"""Probes on the shipped partitions and logs: they report every change to the cluster history.

The probes do not change behaviour. The contents of a log that a process opens are read from the
simulated disk with the checkers' own code, not the shipped code.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from metaquorum.dataplane.log.dirs import log_dir
from metaquorum.dataplane.log.dirs.log_dir import LogDir
from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
from metaquorum.dataplane.log.local_log import LocalLog
from metaquorum.dataplane.log.partition_log import AppendResult, PartitionLog
from metaquorum.dataplane.log.segments.files import DiskFullError
from metaquorum.dataplane.log.segments.names import LOG, SWAP, file_name, parse_partition_folder
from metaquorum.dataplane.log.segments.segment import Segment, SegmentState
from metaquorum.dataplane.maintenance.background_tasks import BackgroundTasks
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.runtime.interfaces import StorageError
from metaquorum.simulations.checkers.log_files import naive_segments
from metaquorum.simulations.kernel.machine import running_on
from metaquorum.simulations.kernel.mutation import swapped
from metaquorum.simulations.kernel.storage import Storage
from metaquorum.simulations.replication.partition_transactions import (
    Kind,
    Stamp,
    marker_stamp,
    stamps_of,
)
from metaquorum.simulations.replication.replicas import (
    ClusterHistory,
    Content,
    Entry,
    Identity,
    LogStartMove,
    Name,
    PartitionHistory,
    ReadableEnds,
    ReplicaLog,
    Role,
)
from metaquorum.wire.primitives.types import ZERO_UUID
from metaquorum.wire.records.batches import batch_crc, batches, parse_header
from metaquorum.wire.records.compression import Codec
from metaquorum.wire.records.records import Record, decode_records


def entries_of(records: Any) -> list[Entry]:
    """Return every record of these batches by offset, without decompressing them."""
    found: list[Entry] = []
    for _, header in batches(records):
        for number in range(header.last_offset_delta + 1):
            name = Name(header.leader_epoch, header.base_offset + number)
            found.append(Entry(name, Identity(header.crc, number)))
    return found


def contents_of(record: Record) -> Content:
    """Return the record's key and unique text; a tombstone has its text in a header."""
    if record.value is None:
        text = record.headers[0][1] if record.headers else b""
        return Content(record.key, text or b"", is_tombstone=True)
    return Content(record.key, bytes(record.value), is_tombstone=False)


def records_of(records: Any) -> list[tuple[Name, Content]]:
    """Return every record of these batches, decoded."""
    return [
        (
            Name(header.leader_epoch, record.offset),
            marker_content(
                marker_stamp(header, bytes(record.key or b""), bytes(record.value or b""))
            )
            if header.is_control
            else contents_of(record),
        )
        for position, header in batches(records)
        for record in decode_records(records, position)
    ]


def marker_content(stamp: Stamp) -> Content:
    """Return contents that identify a marker, which has none of its own but what it says."""
    text = f"{stamp.kind.value} {stamp[:2]} {stamp.coordinator_epoch}".encode()
    return Content(b"marker", text, is_tombstone=False, is_control=True)


def damaged_in(records: Any) -> list[int]:
    """Return the base offsets of batches whose CRC does not match."""
    return [
        header.base_offset
        for position, header in batches(records)
        if batch_crc(records, position, header.batch_bytes) != header.crc
    ]


def entries_on_disk(storage: Storage, folder: str, *, damaged: bool = False) -> list[Entry]:
    """Return the records of all intact batches; if `damaged`, of all batches that can be parsed."""
    found: list[Entry] = []
    if damaged:
        for segment in naive_segments(storage, folder):
            found += entries_of(memoryview(bytes(storage.file(f"{segment.path}.log").data)))
        return found
    for segment in naive_segments(storage, folder):
        data = memoryview(bytes(storage.file(f"{segment.path}.log").data))
        for batch in segment.batches:
            header = parse_header(data, batch.position)
            for number in range(header.last_offset_delta + 1):
                name = Name(header.leader_epoch, header.base_offset + number)
                found.append(Entry(name, Identity(header.crc, number)))
    return found


def seen_entries(cluster_history: ClusterHistory, records: Any) -> list[Entry]:
    """Return every record of these batches, identified by contents if the world does so."""
    if cluster_history.contents is None:
        return entries_of(records)
    found = records_of(records)
    cluster_history.contents.update((content.identity, content) for _, content in found)
    return [Entry(name, content.identity) for name, content in found]


def codecs_of(records: Any) -> list[Codec]:
    return [header.codec for _, header in batches(records)]


class Probes:
    def __init__(self, cluster_history: ClusterHistory) -> None:
        self._cluster_history = cluster_history
        self._retaining: PartitionLog | None = None  # log whose retention advances its start
        self._members = {m.name: m for m in cluster_history.cluster_state.members.values()}
        # Replica of each log; and its partition, once a worker has created the object.
        self._logs: dict[PartitionLog, tuple[PartitionHistory, ReplicaLog]] = {}
        self._partitions: dict[PartitionLog, Partition] = {}

    # Logs

    def opened(self, log: PartitionLog) -> None:
        member = self._members.get(running_on.get())
        folder = log.folder.rsplit("/", 1)[1]
        if member is None or log.topic_id == ZERO_UUID or parse_partition_folder(folder) is None:
            return
        cluster_history = self._cluster_history
        history = cluster_history.history(log.topic_id, log.partition)
        history.topic = log.topic
        replica = cluster_history.replica(history, member.config.node_id)
        self._logs[log] = history, replica
        start, end = log.log_start_offset, log.log_end_offset
        storage = member.supervisor.machine.storage
        damaged = replica.damaged and replica.storage is storage
        if cluster_history.contents is None:
            found = entries_on_disk(storage, log.folder, damaged=damaged)
        else:
            found = self._on_disk(storage, log.folder, history)
        entries = [entry for entry in found if start <= entry.name.offset < end]
        cluster_history.opened(history, replica, start, end, entries)

    def changed_dir(self, log: PartitionLog, future: PartitionLog) -> None:
        """Report the log that has replaced another one in another log directory."""
        if log in self._partitions:
            self._partitions[future] = self._partitions.pop(log)
        if (known := self._logs.pop(log, None)) is None:
            return
        self._logs[future] = known
        start, storage = future.log_start_offset, known[1].machine.storage
        if self._cluster_history.contents is None:
            found = entries_on_disk(storage, future.folder)
        else:
            found = self._on_disk(storage, future.folder, known[0])
        names = [entry.name for entry in found if entry.name.offset >= start]
        self._cluster_history.changed_dir(*known, names, start)

    def _on_disk(self, storage: Storage, folder: str, history: PartitionHistory) -> list[Entry]:
        """Return the records of all intact batches, identified by their contents.

        A process that was killed while it wrote has not reported its last batch.
        """
        found: list[Entry] = []
        for segment in naive_segments(storage, folder):
            data = memoryview(bytes(storage.file(f"{segment.path}.log").data))
            intact = data[: sum(batch.size for batch in segment.batches)]
            for leader_epoch, offset, stamp in stamps_of(intact):
                history.stamped(Name(leader_epoch, offset), stamp)
            found += seen_entries(self._cluster_history, intact)
        return found

    def retired(self, log_dir: LogDir, at: tuple[str, int]) -> None:
        """Report a log that its worker is about to delete although its topic exists."""
        member = self._members.get(running_on.get())
        if member is None:
            return
        worker_id, log = member.config.node_id, log_dir.partitions.get(at)
        for history in list(self._cluster_history.histories.values()):
            if (
                (history.topic, history.place.partition) == at
                and worker_id in history.replicas
                and (log is None or log.topic_id == history.place.topic_id)
                and self._cluster_history.state(history) is not None
            ):
                self._cluster_history.retired(history, history.replicas[worker_id])

    def refused(self, folder: str, error: StorageError) -> None:
        """Report that a process could not open the log in `folder`."""
        member = self._members.get(running_on.get())
        if member is not None and not isinstance(error, DiskFullError):
            self._cluster_history.refused(member.config.node_id, folder, str(error))

    def appended(self, log: PartitionLog, records: Any, result: AppendResult) -> None:
        known = self._logs.get(log)
        if known is None or result.is_duplicate:
            return
        role = self._role(log)
        for leader_epoch, offset, stamp in stamps_of(records):
            known[0].stamped(Name(leader_epoch, offset), stamp)
        self._cluster_history.appended(*known, seen_entries(self._cluster_history, records), role)
        # Compaction may have taken the last records of a batch.
        self._cluster_history.skipped(*known, log.log_end_offset)
        if not role.leads:
            self._cluster_history.took(*known, damaged_in(records))
        elif self._cluster_history.contents is not None:
            self._cluster_history.stored(*known, codecs_of(records))

    def marker_appended(
        self, log: PartitionLog, marker: Any, leader_epoch: int, result: AppendResult
    ) -> None:
        """Report a marker that a leader has appended, with the producer it is of."""
        known = self._logs.get(log)
        if known is None:
            return
        stamp = Stamp(
            marker.producer_id,
            marker.producer_epoch,
            Kind.COMMIT if marker.is_commit else Kind.ABORT,
            marker.coordinator_epoch,
        )
        name, content = Name(leader_epoch, result.first_offset), marker_content(stamp)
        if self._cluster_history.contents is not None:
            self._cluster_history.contents[content.identity] = content
        known[0].stamped(name, stamp)
        self._cluster_history.appended(*known, [Entry(name, content.identity)], self._role(log))
        self._cluster_history.skipped(*known, log.log_end_offset)

    def _role(self, log: PartitionLog) -> Role:
        partition = self._partitions[log]
        return Role(partition.leader_epoch, partition.is_leader)

    def ends_at(self, log: PartitionLog, end: int) -> None:
        known = self._logs.get(log)
        if known is not None:
            start = min(log.log_start_offset, end)
            self._cluster_history.cut(*known, end, start, self._role(log))

    def starts_at(self, log: PartitionLog, before: int) -> None:
        known = self._logs.get(log)
        if known is None:
            return
        if self._cluster_history.contents is None:
            self._cluster_history.started(known[1], log.log_start_offset)
            return
        move = LogStartMove(
            before,
            log.log_start_offset,
            self._partitions[log].high_watermark,
            log.folder,
            int(known[1].machine.clock.wall_s() * 1000) if log is self._retaining else None,
        )
        self._cluster_history.moved(*known, move)

    @contextmanager
    def retaining(self, log: PartitionLog) -> Iterator[None]:
        self._retaining = log
        try:
            yield
        finally:
            self._retaining = None

    def swapping(self, log: PartitionLog, old: Sequence[Segment], base_offset: int) -> None:
        """Report the records that a cleaned segment, about to replace `old`, does not have."""
        known = self._logs.get(log)
        if known is None or self._cluster_history.contents is None:
            return
        history, replica = known
        segments = log.segments
        after = segments.index(old[-1]) + 1
        first, end = old[0].base_offset, segments[after].base_offset
        path = f"{log.folder}/{file_name(base_offset, LOG)}{SWAP}"
        data = replica.machine.storage.file(path).data
        left = {name.offset for name, _ in records_of(memoryview(bytes(data)))}
        names = [
            Name(e, o) for o, e in replica.epochs.items() if first <= o < end and o not in left
        ]
        self._cluster_history.cleaned(history, replica, names)

    # Partitions

    def made(self, partition: Partition) -> None:
        self._partitions[partition.log] = partition

    def advanced(self, partition: Partition, old: int) -> None:
        known = self._logs.get(partition.log)
        if known is not None and partition.is_leader and partition.high_watermark > old:
            self._cluster_history.advanced(*known, old, partition.high_watermark, partition.state)

    def stable(self, partition: Partition) -> None:
        """Report the last stable offset."""
        known = self._logs.get(partition.log)
        if known is not None and partition.offline is None and partition.is_hosted:
            role = Role(partition.leader_epoch, partition.is_leader)
            ends = ReadableEnds(partition.last_stable_offset, partition.high_watermark)
            self._cluster_history.stable(*known, ends, role)

    def follower_fetched(self, partition: Partition, replica_id: int) -> None:
        known = self._logs.get(partition.log)
        if known is not None and partition.is_leader:
            self._cluster_history.follower_fetched(known[0], replica_id)

    def assigned(self, partition: Partition, before: tuple[int, int], old: int) -> None:
        known = self._logs.get(partition.log)
        if known is None or not partition.is_leader or partition.offline is not None:
            return
        if (partition.leader_id, partition.leader_epoch) != before:
            self._cluster_history.leads(*known, partition.leader_epoch, old)
        self.advanced(partition, old)


@contextmanager
def watched_replicas(cluster_history: ClusterHistory) -> Iterator[None]:
    """Report the changes of all replicas to the cluster history while the block runs."""
    probes = Probes(cluster_history)
    with ExitStack() as stack:
        for owner, name, wrapped in (
            *((PartitionLog, "append_marker", _marks),) * hasattr(PartitionLog, "append_marker"),
            (log_dir, "load_log", _loads),
            (LogDir, "_retire", _retires),
            (LogDirs, "swap", _changes_dir),
            (PartitionLog, "__init__", _opens),
            (PartitionLog, "append", _appends),
            (PartitionLog, "append_beside", _appends_beside),
            (PartitionLog, "append_as_follower", _appends),
            (PartitionLog, "append_as_follower_beside", _appends_beside),
            (PartitionLog, "_end_at", _ends_at),
            (PartitionLog, "advance_log_start", _starts_at),
            (LocalLog, "_swap", _swaps),
            (BackgroundTasks, "_advance_start", _retains),
            (Partition, "__init__", _made),
            (Partition, "assign", _assigned),
            (Partition, "fetched_by", _fetches),
            (Partition, "advance", _advances),
            (Partition, "follow_to", _follows),
            (Partition, "appended", _advances),
        ):
            stack.enter_context(swapped(owner, name, wrapped(probes)))
        yield


Wrap = Callable[[Any], Any]


def _loads(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        def load_log(disk: Any, folder: str, *args: Any, **kwargs: Any) -> Any:
            try:
                return right(disk, folder, *args, **kwargs)
            except StorageError as error:
                probes.refused(folder, error)
                raise

        return load_log

    return wrap


def _retires(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        def _retire(self: LogDir, topic: str, partition: int, *args: Any) -> str | None:
            probes.retired(self, (topic, partition))
            name: str | None = right(self, topic, partition, *args)
            return name

        return _retire

    return wrap


def _changes_dir(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        def swap(self: LogDirs, log: PartitionLog, target: LogDir, future: Any, *args: Any) -> Any:
            name = right(self, log, target, future, *args)
            probes.changed_dir(log, future)
            return name

        return swap

    return wrap


def _opens(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        def __init__(self: PartitionLog, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            right(self, *args, **kwargs)
            probes.opened(self)

        return __init__

    return wrap


def _appends(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        def append(self: PartitionLog, records: Any, *args: Any) -> AppendResult:
            result: AppendResult = right(self, records, *args)
            probes.appended(self, records, result)
            return result

        return append

    return wrap


def _appends_beside(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        async def append_beside(
            self: PartitionLog, disk: Any, records: Any, *args: Any
        ) -> AppendResult:
            result: AppendResult = await right(self, disk, records, *args)
            probes.appended(self, records, result)
            return result

        return append_beside

    return wrap


def _marks(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        def append_marker(
            self: PartitionLog, marker: Any, leader_epoch: int, now_ms: int
        ) -> AppendResult:
            result: AppendResult = right(self, marker, leader_epoch, now_ms)
            probes.marker_appended(self, marker, leader_epoch, result)
            return result

        return append_marker

    return wrap


def _ends_at(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        def _end_at(self: PartitionLog, offset: int) -> None:
            probes.ends_at(self, offset)
            right(self, offset)

        return _end_at

    return wrap


def _starts_at(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        def advance_log_start(self: PartitionLog, offset: int) -> bool:
            before = self.log_start_offset
            moved: bool = right(self, offset)
            probes.starts_at(self, before)
            return moved

        return advance_log_start

    return wrap


def _swaps(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        def _swap(self: PartitionLog, old: Sequence[Segment], state: SegmentState) -> Segment:
            probes.swapping(self, old, state.base_offset)
            swapped_in: Segment = right(self, old, state)
            return swapped_in

        return _swap

    return wrap


def _retains(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        def _advance_start(self: BackgroundTasks, partition: Partition) -> PartitionLog:
            with probes.retaining(partition.log):
                retained: PartitionLog = right(self, partition)
                return retained

        return _advance_start

    return wrap


def _made(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        def __init__(self: Partition, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            right(self, *args, **kwargs)
            probes.made(self)

        return __init__

    return wrap


def _fetches(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        def fetched_by(self: Partition, replica_id: int, *args: Any) -> bool:
            probes.follower_fetched(self, replica_id)
            known: bool = right(self, replica_id, *args)
            return known

        return fetched_by

    return wrap


def _assigned(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        def assign(self: Partition, state: Any) -> None:
            before, old = (self.leader_id, self.leader_epoch), self.high_watermark
            right(self, state)
            probes.assigned(self, before, old)

        return assign

    return wrap


def _advances(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        def advance(self: Partition, *args: Any) -> None:
            old = self.high_watermark
            right(self, *args)
            probes.advanced(self, old)
            probes.stable(self)

        return advance

    return wrap


def _follows(probes: Probes) -> Wrap:
    def wrap(right: Any) -> Any:
        def follow_to(self: Partition, high_watermark: int) -> None:
            right(self, high_watermark)
            probes.stable(self)

        return follow_to

    return wrap
