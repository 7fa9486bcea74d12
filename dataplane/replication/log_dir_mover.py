"""Moves of replicas between the log directories of this worker (KIP-113; AlterReplicaLogDirs).

    requested   the future replica is created in the target directory, and waits for its turn
    copying     batches from the current log are appended to it, some at a time; what happens to the
                current log meanwhile (truncation, log start offset) happens to it, too
    noted       nearly caught up: both logs have their ids on disk, and the checkpoints of the
                target have the offsets of the future replica
                (`metaquorum.dataplane.log.dirs.moved_logs`)
    swapped     with the end of both logs equal, in one step of the event loop

Before the swap the future replica has synced all that the current log has synced, so that the move
weakens no guarantee. The log is not compacted while it moves, as in Kafka. A move ends without a
swap if the replica or one of the directories goes offline, if the replica is deleted, or if it is
requested for another directory.

After a restart the copy continues at its end: it is recovered by a scan of all of it, and truncated
to the offsets at which it has the leader epochs of the current log (`common_end`). The same leader
epoch at the same offset names the same record, as for replicas on two workers (KIP-101), so the
current log may have been truncated meanwhile. Compaction may have changed the current log, and
removed tombstones of records that the copy has: the copy of a compacted log begins again, as does
one that has no record in common with the current log (`continues_at`).

The bytes of all moves count for one quota, replica.alter.log.dirs.io.max.bytes.per.second.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import trio

from metaquorum.dataplane.log.dirs.log_dir import LogDir
from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
from metaquorum.dataplane.log.dirs.moved_logs import (
    LogId,
    UnfinishedMove,
    future_folder,
    new_unique,
    read_log_id,
)
from metaquorum.dataplane.log.local_log import NO_CUT
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.recovery.recovery import RecoveryStoppedError
from metaquorum.dataplane.log.segments.files import (
    ColdError,
    DirectoryFailedError,
    DiskFullError,
    UnreadableError,
    storage_errors,
)
from metaquorum.dataplane.log.segments.names import MOVED
from metaquorum.dataplane.log.segments.slices import LogSlice
from metaquorum.dataplane.log.segments.snapshots import decode_snapshot, encode_snapshot
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.quotas.replication_quota import ReplicationQuota
from metaquorum.dataplane.replication.replica_manager import ReplicaManager
from metaquorum.runtime import File, Runtime, StorageError, sleep
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.batches import BatchHeader, batch_crc, batches, stored_problem

logger = logging.getLogger(__name__)

STEP_BYTES: Final = 128 << 10  # read in a worker thread at a time
APPENDED_BATCHES: Final = 200  # appended without yielding to the event loop
SWAP_BYTES: Final = 64 << 10  # copied in the step of the swap, at most
FLUSHED_BYTES: Final = 64 << 20  # copied between two syncs
LEAST_PAUSE_S: Final = 0.01  # meanwhile the quota accumulates, so the rate is the same
MOST_PAUSE_S: Final = 1.0  # then a waiting move is examined again
RETRY_S: Final = 5.0  # after an error that may be temporary, such as a full disk
SWAP_RETRY_S: Final = 0.01
MAX_PREFERRED: Final = 100_000


class _EndedError(Exception):
    """Raised if a move is over without a swap."""


class _SourceError(Exception):
    """Raised if the current log, or its directory, fails: the target is not to blame."""

    def __init__(self, error: StorageError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def _of_source() -> Iterator[None]:
    """Raise a StorageError of the block as a _SourceError."""
    try:
        yield
    except StorageError as error:
        raise _SourceError(error) from error


def common_end(log: PartitionLog, future: PartitionLog) -> int:
    """Return the first offset at which the logs end, or have different or no leader epochs."""
    start = max(log.log_start_offset, future.log_start_offset)
    end = min(log.log_end_offset, future.log_end_offset)
    begins = {at for _, at in (*log.epochs.entries, *future.epochs.entries) if start < at < end}
    for at in (start, *sorted(begins)):
        epoch = log.epochs.epoch_at(at)
        if epoch < 0 or epoch != future.epochs.epoch_at(at):
            return at
    return max(start, end)


def continues_at(log: PartitionLog, copy: PartitionLog) -> int | None:
    """Return the offset up to which an interrupted copy is that of `log`; None if it is not one.

    At least one record has to be the same, and then all before it are, too: those before the log
    start offset decide the state of producers. A loss of power may have taken that of producers
    without records from the copy.
    """
    if copy.topic_id != log.topic_id or copy.log_start_offset > log.log_start_offset:
        return None
    end = min(common_end(log, copy), log.least_cut)
    if end <= log.log_start_offset:
        return None
    known = copy.producers.entries
    for producer_id, entry in log.producers.entries.items():
        if producer_id not in known and entry.batches and entry.batches[-1].last_offset < end:
            return None
    return end


class Move:
    """One replica that moves to another directory."""

    def __init__(
        self,
        partition: Partition,
        source: LogDir,
        target: LogDir,
        future: PartitionLog,
        cleaned_to: int | None,
    ) -> None:
        self.partition = partition
        self.log = partition.log
        self.source = source
        self.target = target
        self.future = future
        self.cleaned_to = cleaned_to  # when the copy began
        self.scope = trio.CancelScope()
        # Log start offset for which the future replica was started; -1 before.
        self.started_for = -1
        self.is_noted = False
        self.is_full = False  # a full disk was logged
        self.unsynced_bytes = 0
        self.log.least_cut = NO_CUT

    @property
    def at(self) -> tuple[str, int]:
        return self.partition.topic, self.partition.index

    @property
    def lag(self) -> int:
        """Number of offsets that the future replica is behind the current log."""
        return max(0, self.log.log_end_offset - self.future.log_end_offset)


class LogDirMover:
    """The moves of one worker; `run` carries them out."""

    def __init__(
        self,
        runtime: Runtime,
        partitions: ReplicaManager,
        quota: ReplicationQuota,
        concurrent: int,
    ) -> None:
        """`concurrent`: number of replicas that are copied at the same time."""
        self._runtime = runtime
        self._clock = runtime.clock
        self._disk = runtime.disk
        self._partitions = partitions
        self._log_dirs: LogDirs = partitions.log_dirs
        self.quota: Final = quota
        self.monotonic: Final = runtime.clock.monotonic
        self.moves: Final[dict[tuple[str, int], Move]] = {}
        self.failed_count = 0  # moves that ended by an error
        self.moved_count = 0
        self.continued_count = 0  # moves of an earlier process that continue with its copy
        self._recovering: set[UnfinishedMove] = set()
        self._recovered: dict[tuple[str, int], PartitionLog] = {}  # for `_begin`
        self._slots = trio.Semaphore(concurrent)
        self._scans = trio.Semaphore(concurrent)  # recoveries of copies of an earlier process
        self._waiting: list[Move] = []
        self._requested = trio.Event()

    # Requests

    def alter(self, topic: str, index: int, path: str) -> ErrorCode:
        """Move the replica to the log directory at `path`, and return an error code.

        A replica that this worker does not have is created there later. A request for the directory
        that has the replica cancels its move. Source: Kafka's ReplicaManager.alterReplicaLogDirs.
        """
        at = topic, index
        if future_folder(topic, index, "0" * 32) is None:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        log_dirs = self._log_dirs
        target = next((one for one in log_dirs.online if one.path == path), None)
        if target is None:
            lost = [one.path for one in log_dirs.failed]
            lost += [one.path for one in log_dirs.absent if one.is_configured]
            known = path in lost
            return ErrorCode.KAFKA_STORAGE_ERROR if known else ErrorCode.LOG_DIR_NOT_FOUND
        try:
            partition = self._partitions.by_name(topic, index)
        except KafkaError as error:
            if error.code == ErrorCode.KAFKA_STORAGE_ERROR:
                return error.code
            if len(log_dirs.preferred) < MAX_PREFERRED:
                log_dirs.preferred[at] = path
            if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                return ErrorCode.REPLICA_NOT_AVAILABLE
            return error.code
        if (unfinished := log_dirs.continuing.get(at)) is not None:
            if unfinished.path == path:
                return ErrorCode.NONE
            del log_dirs.continuing[at]
            if unfinished not in self._recovering:
                self._drop_copy(unfinished)
        source = log_dirs.dir_of(at)
        if partition.offline is not None or source is None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        move = self.moves.get(at)
        if move is not None:
            if move.target is target and move.log is partition.log:
                return ErrorCode.NONE
            self._end(move, "another directory was requested")
        if source is target:
            return ErrorCode.NONE
        if log_dirs.failed or log_dirs.absent:  # as in Kafka: the replica may be there, too
            return ErrorCode.KAFKA_STORAGE_ERROR
        return self._begin(partition, source, target)

    def _begin(self, partition: Partition, source: LogDir, target: LogDir) -> ErrorCode:
        log, now_ms, rng = partition.log, self._clock.now_ms(), self._runtime.random
        at = partition.topic, partition.index
        cleaned_to = source.checkpoints.cleaner_offsets.get(at)
        copy = self._recovered.get(at)
        if copy is not None and cleaned_to is None and not partition.config.compacts:
            common = continues_at(log, copy)
            if common is not None:
                target.adopt_future(self._recovered.pop(at))
                self._enter(Move(partition, source, target, copy, None), common)
                return ErrorCode.NONE
        try:
            future = target.create_future(log, log.log_start_offset, rng, now_ms)
        except StorageError as error:
            logger.error("cannot move %s to %s: %s", partition, target.path, error)
            self._target_failed(target, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        assert future is not None
        self._enter(Move(partition, source, target, future, cleaned_to))
        return ErrorCode.NONE

    def _enter(self, move: Move, common: int | None = None) -> None:
        """Let the move run. `common`: the copy has all before this offset, and is started."""
        self.moves[move.at] = move
        self._waiting.append(move)
        self._requested.set()
        names = move.partition, move.source.path, move.target.path
        if common is None:
            logger.info("%s: moving the replica from %s to %s", *names)
            return
        self.continued_count += 1
        move.started_for = move.log.log_start_offset
        if common < move.future.log_end_offset:
            move.log.least_cut = common  # `_follow` truncates the copy
        logger.info(
            "%s: the move from %s to %s continues at offset %d of %d",
            *names,
            common,
            move.log.log_end_offset,
        )

    def _end(self, move: Move, reason: str) -> None:
        """End a move without a swap, and delete its future replica."""
        if self.moves.get(move.at) is not move:
            return
        del self.moves[move.at]
        move.scope.cancel()
        logger.info("%s: the move to %s ended: %s", move.partition, move.target.path, reason)
        try:
            move.target.drop_future(move.future, self._runtime.random)
        except StorageError as error:
            logger.error("cannot delete the copy of %s: %s", move.partition, error)
            self._target_failed(move.target, error)

    def _target_failed(self, target: LogDir, error: StorageError) -> None:
        if isinstance(error, DirectoryFailedError | DiskFullError):
            self._log_dirs.failed_in(target, error)

    # Running

    async def run(self) -> None:
        """Run moves until cancelled; those that an earlier process had begun first."""
        unfinished, self._log_dirs.unfinished_moves = self._log_dirs.unfinished_moves, []
        async with trio.open_nursery() as nursery:
            for each in unfinished:
                if self._log_dirs.continuing.get(each.partition) == each:
                    nursery.start_soon(self._continue, each)
                else:  # another copy of that log
                    self._drop_copy(each)
            while True:
                await self._requested.wait()
                self._requested = trio.Event()
                for move in self._waiting:
                    nursery.start_soon(self._run_one, move)
                self._waiting = []

    async def _continue(self, unfinished: UnfinishedMove) -> None:
        """Resume a move of an earlier process with its copy, or begin it again without it."""
        at, path = unfinished.partition, unfinished.path
        continuing = self._log_dirs.continuing
        copy = None
        async with self._scans:
            if continuing.get(at) != unfinished:  # cancelled
                return
            self._recovering.add(unfinished)
            try:
                copy = await self._recover(unfinished)
            finally:
                self._recovering.discard(unfinished)
        if continuing.get(at) == unfinished:
            del continuing[at]
            if copy is not None:
                self._recovered[at] = copy
            if code := self.alter(*at, path):
                logger.warning("%s-%d: the move to %s is not continued: %s", *at, path, code.name)
            if copy is not None and self._recovered.pop(at, None) is None:
                return  # it is in use
        self._drop_copy(unfinished)

    def _target_of(self, unfinished: UnfinishedMove) -> LogDir | None:
        return next((one for one in self._log_dirs.online if one.path == unfinished.path), None)

    def _drop_copy(self, unfinished: UnfinishedMove) -> None:
        """Delete the copy of an earlier process."""
        target, at = self._target_of(unfinished), unfinished.partition
        if target is None:
            return
        folder = os.path.join(target.path, unfinished.name)
        if not self._disk.exists(folder):
            return
        try:
            target.drop_folder(at, folder, self._runtime.random)
        except StorageError as error:
            logger.error("cannot delete the copy of %s-%d: %s", *at, error)
            self._target_failed(target, error)

    async def _recover(self, unfinished: UnfinishedMove) -> PartitionLog | None:
        """Return the copy of an earlier process, recovered; None if it cannot be used."""
        target = self._target_of(unfinished)
        if target is None:
            return None
        try:
            partition = self._partitions.by_name(*unfinished.partition)
        except KafkaError:
            return None
        if partition.offline is not None or partition.config.compacts:
            return None
        log, now_ms = partition.log, self._clock.now_ms()
        is_stopped = False
        recover = partial(
            target.recover_future, unfinished.name, log.config, now_ms, lambda: is_stopped
        )

        async def stop() -> None:
            nonlocal is_stopped
            try:
                await trio.sleep_forever()
            finally:  # the thread's work ends before the node stops
                is_stopped = True

        loaded = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop)
            try:
                loaded = await self._disk.run(recover)
            except StorageError as error:
                logger.warning(
                    "%s: cannot use the copy in %s: %s; it is copied again",
                    partition,
                    target.path,
                    error,
                )
                self._target_failed(target, error)
            except RecoveryStoppedError:
                pass
            nursery.cancel_scope.cancel()
        return None if loaded is None else target.open_future(log, loaded, now_ms)

    async def _run_one(self, move: Move) -> None:
        """Run one move to its end. A move that waits, as for a full disk, does not hold a slot."""
        with move.scope:
            while True:
                async with self._slots:
                    pause_s = await self._move(move)
                if pause_s is None:
                    return
                await sleep(self._clock, pause_s)

    async def _move(self, move: Move) -> float | None:
        """Copy and swap. Return the seconds until the next attempt; None if the move has ended."""
        while True:
            try:
                self._check(move)
                await self._copy(move)
                if await self._swap(move):
                    return None
                await sleep(self._clock, SWAP_RETRY_S)
            except _EndedError as ended:
                self._end(move, str(ended))
                return None
            except _SourceError as failure:
                self._partitions.fail(move.partition, failure.error)
                if isinstance(failure.error, UnreadableError):
                    self.failed_count += 1
                    self._end(move, f"the log cannot be read: {failure.error}")
                    return None
                return RETRY_S
            except KafkaError as error:
                self.failed_count += 1
                logger.error("cannot move %s: %s", move.partition, error.message)
                self._end(move, "the log is damaged")
                return None
            except StorageError as error:
                return self._retries(move, error)

    def _retries(self, move: Move, error: StorageError) -> float | None:
        """Return the seconds until the next attempt; None if the move has ended."""
        if isinstance(error, DirectoryFailedError) or move.future.failure is not None:
            self.failed_count += 1
            logger.error("cannot move %s to %s: %s", move.partition, move.target.path, error)
            self._target_failed(move.target, error)
            self._end(move, "the directory failed")
            return None
        if not (isinstance(error, DiskFullError) and move.is_full):
            logger.warning(
                "cannot copy %s to %s: %s; the move tries again every %d s",
                move.partition,
                move.target.path,
                error,
                RETRY_S,
            )
        move.is_full = isinstance(error, DiskFullError)
        if move.is_full:
            self._target_failed(move.target, error)  # deleted files there are removed at once
        return RETRY_S

    def _check(self, move: Move) -> None:
        """Raise _EndedError if the move must not continue."""
        if self.moves.get(move.at) is not move:  # ended; its scope is cancelled at a checkpoint
            raise _EndedError("it was cancelled")
        if move.target.failure is not None or move.source.failure is not None:
            raise _EndedError("a directory is offline")
        if move.partition.offline is not None:
            raise _EndedError("the replica is offline")
        if move.partition.log is not move.log or self._log_dirs.log(move.at) is not move.log:
            raise _EndedError("the replica was deleted")

    # Copying

    async def _copy(self, move: Move) -> None:
        """Copy until about SWAP_BYTES are left."""
        while not self._is_near(move):
            await self._wait_for_quota(move)
            self._check(move)
            if not await self._follow(move):
                await self._copy_some(move)
            self._check(move)

    def _is_near(self, move: Move) -> bool:
        log, future = move.log, move.future
        return (
            move.started_for >= 0
            and log.least_cut == NO_CUT
            and log.log_start_offset <= future.log_end_offset <= log.log_end_offset
            and self._rest_bytes(move) <= SWAP_BYTES
        )

    def _rest_bytes(self, move: Move) -> int:
        if move.future.log_end_offset == move.log.log_end_offset:
            return 0
        try:
            return move.log.rest_hot(move.future.log_end_offset)[0]
        except (ColdError, StorageError):
            return SWAP_BYTES + 1

    async def _wait_for_quota(self, move: Move) -> None:
        while (delay_s := self.quota.delay_s(self._clock.monotonic())) > 0:
            await sleep(self._clock, min(max(delay_s, LEAST_PAUSE_S), MOST_PAUSE_S))
            self._check(move)

    async def _follow(self, move: Move) -> bool:
        """Truncate or start the future replica as the log was; return whether that was due."""
        log, future = move.log, move.future
        cut, log.least_cut = log.least_cut, NO_CUT
        end, start = future.log_end_offset, log.log_start_offset
        try:
            is_behind = start > end and start != move.started_for
            if move.started_for < 0 or cut <= future.log_start_offset or is_behind:
                await self._start(move)
            elif cut < end:
                kept = future.offsets_after_truncation(cut)
                async with self._log_dirs.cutting_future(move.target, kept, move.at):
                    future.truncate_to(cut)
                    await future.flush(self._disk)
            else:
                return False
        except BaseException:
            log.least_cut = min(log.least_cut, cut)
            raise
        return True

    async def _start(self, move: Move) -> None:
        """Start the future replica, empty, at the first batch of the log.

        After DeleteRecords the log may start within that batch. Producers whose records were all
        deleted are known only from the log's own state.
        """
        log, future = move.log, move.future
        truncations = log.truncations
        base = start = log.log_start_offset
        piece = await self._piece(log, base, 1)
        if piece.size_bytes:
            _, headers = await self._read(piece, str(log))
            base = min(base, headers[0].base_offset)
        if log.truncations != truncations:
            return  # then `_copy` follows that truncation first
        producers = decode_snapshot(
            encode_snapshot(
                entry
                for entry in log.producers.entries.values()
                if not entry.batches or entry.batches[-1].last_offset < base
            )
        )
        if move.started_for >= 0 or base != future.log_start_offset:
            kept = future.offsets_after_full_truncation(base)
            async with self._log_dirs.cutting_future(move.target, kept, move.at):
                future.truncate_fully_and_start_at(base)
                await future.flush(self._disk)
        future.keep_producers(producers)
        move.started_for = start

    async def _copy_some(self, move: Move) -> None:
        log = move.log
        truncations = log.truncations
        piece = await self._piece(log, move.future.log_end_offset, self._step_bytes())
        if not piece.size_bytes:
            await trio.lowlevel.checkpoint()
            return
        self.quota.record(piece.size_bytes, self._clock.monotonic())
        try:
            data, headers = await self._read(piece, str(log))
        except EOFError:  # compaction or retention removed the file
            return
        at = 0
        for first in range(0, len(headers), APPENDED_BATCHES):
            if log.truncations != truncations:
                return
            some = headers[first : first + APPENDED_BATCHES]
            size = sum(header.batch_bytes for header in some)
            if size > self._disk.inline_write_bytes and not _is_copied(move, some):
                await move.future.append_as_follower_beside(
                    self._disk, data[at : at + size], some, self._clock.now_ms()
                )
                if log.truncations != truncations:
                    return
                self._raise_log_start(move)
            else:
                self._append(move, data[at : at + size], some)
            at += size
            await trio.lowlevel.checkpoint()
        move.is_full = False
        await self._settle(move, at)

    async def _read(self, piece: LogSlice, name: str) -> tuple[memoryview, list[BatchHeader]]:
        """Return the piece and the headers of its complete batches, read in a worker thread.

        Raises _SourceError, KafkaError (CORRUPT_MESSAGE), EOFError if the file was removed.
        """
        size, position = piece.size_bytes, piece.position

        def read(file: File) -> tuple[memoryview, list[BatchHeader]]:
            data = file.read(size, position)
            return memoryview(data), _checked(data, name)

        with _of_source(), piece.pinned() as file, piece.reading():
            return await self._disk.run(partial(read, file))

    def _step_bytes(self) -> int:
        return min(STEP_BYTES, max(self.quota.rate_limit // 8, 1))

    async def _piece(self, log: PartitionLog, offset: int, most: int) -> LogSlice:
        while True:
            try:
                offset = max(offset, log.log_start_offset)
                with _of_source():
                    return log.read_hot(offset, most, log.log_end_offset, min_one=True)
            except ColdError as cold:
                try:
                    with _of_source():
                        await cold.warm(self._disk)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise _SourceError(StorageError(str(error))) from error

    def _append(self, move: Move, data: memoryview, headers: Sequence[BatchHeader]) -> None:
        if _is_copied(move, headers):
            return
        move.future.append_as_follower(data, headers, self._clock.now_ms())
        self._raise_log_start(move)

    def _raise_log_start(self, move: Move) -> None:
        future = move.future
        future.advance_log_start(min(move.log.log_start_offset, future.log_end_offset))

    async def _settle(self, move: Move, size_bytes: int) -> None:
        """Delete old segments of the future replica, and sync it from time to time."""
        future = move.future
        if future.segment_count > 1 and await future.delete_old_segments(self._disk):
            _, failure = await self._disk.run(future.remove_deleted)
            if failure is not None:
                raise failure
        move.unsynced_bytes += size_bytes
        if move.unsynced_bytes >= FLUSHED_BYTES:
            move.unsynced_bytes = 0
            await future.flush(self._disk)

    # The swap

    async def _swap(self, move: Move) -> bool:
        """Replace the log by its future replica. Return False if the copy must continue before."""
        if not move.is_noted:
            await self._note(move)
        await move.future.flush(self._disk)
        async with move.partition.appending:
            self._check(move)
            if not self._copy_rest(move):
                return False
            if move.future.recovery_point < move.log.recovery_point:
                await move.future.flush(self._disk)
            self._check(move)
            if not self._may_swap(move):
                return False
            name = self._swap_nowait(move)
        with trio.CancelScope(shield=True):
            try:
                await self._log_dirs.finish_swap(move.source, move.log, move.target, name)
            except StorageError as error:
                logger.error("after the move of %s: %s", move.partition, error)
        return True

    async def _note(self, move: Move) -> None:
        """Write the ids of both logs, and the checkpoints of the target, and sync them."""
        log, future, rng = move.log, move.future, self._runtime.random
        log_id = await self._id_of(move)
        if log_id is None:
            log_id = LogId(new_unique(rng))
            if log.has_folder:
                with _of_source():
                    log.write_small_file(MOVED, log_id.encode())
                    await log.flush(self._disk)
        future.write_small_file(MOVED, log_id.successor(new_unique(rng)).encode())
        await future.flush(self._disk)
        self._check(move)
        move.target.note_future(future)
        await self._log_dirs.checkpoint(move.target, self._high_watermarks)
        move.is_noted = True

    async def _id_of(self, move: Move) -> LogId | None:
        """Return the id on disk of the current log, None without one.

        Raises _EndedError if it cannot be read: the log cannot move, but its records may be
        readable all the same.
        """
        folder = move.log.folder
        if not move.log.has_folder:
            return None
        try:
            with storage_errors("read", os.path.join(folder, MOVED)):
                return await self._disk.run(lambda: read_log_id(self._disk, folder))
        except UnreadableError as error:
            self.failed_count += 1
            logger.error("cannot move %s to %s: %s", move.partition, move.target.path, error)
            self._log_dirs.failed_in(move.source, error)
            raise _EndedError("the id of the log cannot be read") from error

    def _high_watermarks(self) -> Mapping[tuple[str, int], int]:
        return {(each.topic, each.index): each.high_watermark for each in self._partitions}

    def _copy_rest(self, move: Move) -> bool:
        """Copy what is left, without yielding; return whether nothing is left."""
        log, future = move.log, move.future
        if not self._is_near(move):
            return False
        while future.log_end_offset < log.log_end_offset:
            offset = future.log_end_offset
            try:
                with _of_source():
                    piece = log.read_hot(offset, SWAP_BYTES, log.log_end_offset, min_one=True)
            except ColdError:
                return False
            data = piece.read_cached() if piece.size_bytes else None
            if not data:
                return False
            headers = _checked(data, str(log))
            size = sum(header.batch_bytes for header in headers)
            self.quota.record(size, self._clock.monotonic())
            self._append(move, memoryview(data)[:size], headers)
            if future.log_end_offset == offset:
                return False
        self._raise_log_start(move)
        return True

    def _may_swap(self, move: Move) -> bool:
        log, future = move.log, move.future
        return (
            log.least_cut == NO_CUT
            and not (log.is_flushing or log.is_writing)
            and log.failure is None
            and future.failure is None
            and not self._log_dirs.is_cutting(move.at)
            and _is_caught_up(log, future)
            and future.recovery_point >= log.recovery_point
        )

    def _swap_nowait(self, move: Move) -> str | None:
        move.future.take_over(move.log)
        name = self._log_dirs.swap(
            move.log, move.target, move.future, self._clock.now_ms(), move.cleaned_to
        )
        move.partition.log = move.future
        del self.moves[move.at]
        self.moved_count += 1
        logger.info("%s: moved from %s to %s", move.partition, move.source.path, move.target.path)
        return name


def _is_copied(move: Move, headers: Sequence[BatchHeader]) -> bool:
    """Return whether the copy has these batches: they were read again after a truncation."""
    return headers[0].base_offset < move.future.log_end_offset


def _is_caught_up(log: PartitionLog, future: PartitionLog) -> bool:
    """Return whether the future replica has all records of the log."""
    return (
        future.log_end_offset == log.log_end_offset
        and future.log_start_offset == log.log_start_offset
    )


def _checked(data: bytes, name: str) -> list[BatchHeader]:
    """Return the headers of the complete batches. Raises KafkaError (CORRUPT_MESSAGE)."""
    headers = []
    for position, header in batches(data):
        problem = (
            "its checksum is wrong"
            if batch_crc(data, position, header.batch_bytes) != header.crc
            else stored_problem(header)
        )
        if problem:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{name}: the batch at offset {header.base_offset}: {problem}",
            )
        headers.append(header)
    return headers
