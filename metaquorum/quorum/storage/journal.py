"""Journal of a voter: entries of the replicated log and the hard state (term and vote), on disk.

Segments are append-only sequences of frames (`framing.py`) of operations (`journal_ops.py`). An
operation truncates a suffix of the log; removing segments drops a prefix. Callers *stage*
operations, and only `sync` writes them: after `await journal.sync()` all staged operations are
durable.

Order of disk operations, with a possible power loss between any two:

    sync        write one frame at the end; fdatasync; only then write the next frame
    roll        write a `.tmp` with the first frame; fdatasync; rename; sync the folder; only then
                append to the segment
    removal     remove the oldest segment; sync the folder; then the next
    opening     remove stray `.tmp` files; remove a torn tail; write the last frame again (after a
                failed fdatasync the kernel considers the pages clean, though the disk never got
                them); fdatasync; sync the folder; only then use the journal

Without a free descriptor (EMFILE, ENFILE) nothing of this fails, but it waits:

    no `.tmp` can be created     the current segment continues, up to `MOST_SEGMENTS` times its
                                 size; beyond that entries are refused, votes are still written
    the folder cannot be synced  after a roll: the next append syncs it first. Entries are refused
                                 meanwhile, a vote waits (`JournalWaitError`). After a removal: the
                                 next roll or removal syncs it

The name of a segment is the sequence number of its first frame. That frame also contains the last
log position and the hard state before the segment, so that `open` detects a missing segment or a
segment of another log.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NoReturn

from metaquorum.quorum.storage.framing import (
    HEADER_BYTES,
    DamagedError,
    encode_frame,
    frame_bytes,
    is_torn,
    read_frame,
)
from metaquorum.quorum.storage.journal_index import JournalIndex
from metaquorum.quorum.storage.journal_ops import (
    FORMAT,
    MAX_FRAME_OPS,
    MAX_PAYLOAD_BYTES,
    NO_VOTE,
    Begin,
    Closed,
    Entry,
    HardState,
    LogPosition,
    Op,
    Reset,
    Truncate,
    decode_ops,
    encode_ops,
    op_bytes,
)
from metaquorum.runtime.interfaces import Disk, File, StorageError, is_out_of_descriptors
from metaquorum.security.private_files import keep_private

MAGIC: Final = b"MQJ\x01"
SUFFIX: Final = ".journal"
TEMPORARY: Final = ".tmp"
SEGMENT_BYTES: Final = 16 << 20
# Size of a segment, in units of its usual size, while there is no descriptor for the next one.
MOST_SEGMENTS: Final = 4
MAX_FRAME_BYTES: Final = MAX_PAYLOAD_BYTES + (4 << 20)


class _NoDescriptorError(Exception):
    """Raised if a segment cannot be created now."""

    def __str__(self) -> str:
        return str(self.__cause__)


class JournalFullError(StorageError):
    """Raised if the disk is full; the staged operations are dropped and not written.

    Raised also if the process has no descriptor left for the next segment or its name.
    """

    def __init__(self, text: str, reason: str = "the disk of the metadata log is full") -> None:
        """`reason`: a sentence for clients, without paths."""
        super().__init__(text)
        self.reason: Final = reason


class JournalWaitError(StorageError):
    """Raised if there is no descriptor to write a vote or a truncation; both stay staged.

    The journal stays usable: the next `sync` writes them.
    """


class Journal:
    """Journal of one voter, owned by one task. Indexes start at 1 and have no gaps.

    `append`, `truncate`, `reset` and `set_hard_state` stage operations in the order of the calls;
    `sync` makes them durable. `durable` is the last durable position.
    """

    def __init__(
        self, disk: Disk, directory: str, cluster_id: str, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """Create a journal, which must be opened by `open` before use."""
        self._disk = disk
        self._directory = directory
        self._cluster_id = cluster_id
        self._segment_bytes = segment_bytes
        self._index = JournalIndex()
        self._segments: list[int] = []  # sequence number of the first frame of each
        self._sequence = 0  # sequence number of the next frame
        self._file: File | None = None
        self._size_bytes = 0  # size of the newest segment
        self._is_name_unsynced = False  # the newest segment's; nothing is appended to it meanwhile
        self._is_removal_unsynced = False  # the last removed segment's
        self._total_bytes = 0
        self._staged: list[Op] = []
        self._failure: str | None = "it is not open"
        self.torn_bytes = 0  # size of the torn tail that `open` removed

    @property
    def base(self) -> LogPosition:
        """Position before the first entry of the journal."""
        return self._index.base

    @property
    def last(self) -> LogPosition:
        """Position of the last entry, including staged ones."""
        return self._index.last

    @property
    def durable(self) -> LogPosition:
        """Position of the last entry that survives a power loss."""
        return self._index.durable

    @property
    def hard_state(self) -> HardState:
        """Hard state as set last, even if it is only staged."""
        return self._index.hard_state

    @property
    def segments(self) -> int:
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        """Size of all segments."""
        return self._total_bytes

    def term_at(self, index: int) -> int:
        """Return the term of the entry at `index`, or of the base."""
        return self._index.term_at(index)

    # Reading

    def read(self, first_index: int, last_index: int) -> list[Entry]:
        """Return the entries from `first_index` to `last_index`, both included.

        The caller limits the number of entries. Blocking unless the entries are recent: call by
        `Disk.run`. Raises StorageError if a segment cannot be read.
        """
        assert self.base.index < first_index
        assert last_index <= self.last.index
        return list(self.entries(first_index, last_index))

    def entries(self, first_index: int, last_index: int) -> Iterator[Entry]:
        """Yield the entries like `read`, with one frame in memory at a time."""
        while first_index <= last_index:
            cached = self._index.cached(first_index, last_index)
            if cached is not None:
                yield from cached
                return
            start, last, segment, position = self._index.frames(first_index, last_index)[0]
            assert start == first_index
            for op in self._read_frame(segment, position):
                if isinstance(op, Entry) and first_index <= op.index <= last:
                    yield op
            first_index = last + 1

    def _read_frame(self, segment: int, position: int) -> list[Op]:
        path = self._path(segment)
        try:
            file = self._disk.open(path)
            try:
                header = file.read(HEADER_BYTES, position)
                data = file.read(frame_bytes(MAGIC, header) or 0, position)
            finally:
                file.close()
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error}") from error
        frame = read_frame(MAGIC, data, 0)
        if frame is None:
            raise _damaged(path, position, "unreadable frame")
        return _decoded(path, position, frame.body)

    # Staging

    def append(self, entry: Entry) -> None:
        """Stage an entry after the last one."""
        assert entry.index == self.last.index + 1
        assert entry.term >= self.last.term
        assert len(entry.payload) <= MAX_PAYLOAD_BYTES
        self._stage(entry)

    def truncate(self, end_index: int) -> None:
        """Stage the removal of the entries from `end_index` on."""
        assert self.base.index < end_index <= self.last.index
        self._stage(Truncate(end_index, self.term_at(end_index - 1)))

    def reset(self, position: LogPosition) -> None:
        """Stage the removal of all entries; the next entry follows `position`, of a snapshot."""
        self._stage(Reset(position.index, position.term))

    def set_hard_state(self, term: int, vote: int = NO_VOTE) -> None:
        """Stage the hard state: the current term, and the vote in it."""
        assert term >= self.hard_state.term
        self._stage(HardState(term, vote))

    def _stage(self, op: Op) -> None:
        self._check_usable()
        self._staged.append(op)
        self._index.stage(op)

    # Writing

    async def sync(self) -> None:
        """Write all staged operations durably.

        Raises JournalFullError if the disk is full: the staged entries that are not written yet
        are dropped, and the journal stays usable. Raises JournalWaitError if `sync` has to be
        called again. Raises StorageError for other failures: the durable state is unknown, and the
        journal cannot be used until it is opened again.
        """
        self._check_usable()
        while self._staged:
            if self._size_bytes >= self._segment_bytes and not self._is_name_unsynced:
                await self._roll()
            if self._is_name_unsynced:
                await self._sync_name()
            ops = _one_frame(self._staged)
            frame = encode_frame(MAGIC, self._sequence, encode_ops(ops))
            await self._write(lambda frame=frame: self._append_frame(frame))  # type: ignore[misc]
            del self._staged[: len(ops)]
            self._index.wrote(ops, self._segments[-1], self._size_bytes)
            self._sequence += 1
            self._size_bytes += len(frame)
            self._total_bytes += len(frame)
        self._index.settle()

    async def _write(self, function: Callable[[], None]) -> None:
        try:
            await self._disk.run(function)
        except JournalFullError:
            self._unstage()
            raise
        except OSError as error:
            raise self._fail(f"cannot write to {self._directory}: {error}") from error

    async def _roll(self) -> None:
        """Begin the next segment; without a descriptor for it, the current one continues."""
        made: list[tuple[File, int]] = []

        def make() -> None:
            with suppress(_NoDescriptorError):
                made.append(self._make_segment(self._sequence))

        await self._write(make)
        if made:
            self._rolled(*made[0])
        elif self._size_bytes >= MOST_SEGMENTS * self._segment_bytes and self._has_only_entries():
            self._refuse_entries()

    async def _sync_name(self) -> None:
        """Sync the name of the newest segment. Raises JournalFullError, JournalWaitError.

        The file of the segment before is closed by now. There is no descriptor for the folder only
        if another thread has taken that one.
        """
        is_synced = False

        def sync() -> None:
            nonlocal is_synced
            is_synced = self._sync_folder()

        await self._write(sync)
        if is_synced:
            self._is_name_unsynced = self._is_removal_unsynced = False
            return
        if not self._has_only_entries():
            raise JournalWaitError(
                f"no descriptor is left to sync {self._directory}: raise the limit of open files"
            )
        self._refuse_entries()

    def _sync_folder(self) -> bool:
        """Return whether there was a descriptor to sync the folder. Raises OSError."""
        try:
            self._sync_dir()
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise
            return False
        return True

    def _sync_dir(self) -> None:
        self._disk.sync_dir(self._directory)

    def _refuse_entries(self) -> NoReturn:
        self._unstage()
        raise JournalFullError(
            f"no descriptor is left for the next segment in {self._directory}: raise the limit of"
            " open files",
            "the node of the metadata log has no descriptor left for a file",
        )

    def _has_only_entries(self) -> bool:
        return all(isinstance(op, Entry) for op in self._staged)

    def _unstage(self) -> None:
        """Drop the staged entries.

        Only entries may be dropped: without a durable vote or truncation a voter must stop.
        """
        if not self._has_only_entries():
            raise self._fail(f"no space left in {self._directory} for a vote or a truncation")
        self._staged.clear()
        written = self._index.written
        self._index.cut(written.index + 1, written.term)
        self._index.settle()

    def _append_frame(self, frame: bytes) -> None:
        file = self._file
        assert file is not None
        try:
            file.write(frame, self._size_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # No entry may reappear after a restart once it was reported as refused.
            file.truncate(self._size_bytes)
            file.sync()
            raise JournalFullError(f"no space left in {self._directory}") from error
        file.sync()

    def _make_segment(self, sequence: int) -> tuple[File, int]:
        """Return the open file of a new segment, whose name is not synced yet, and its size.

        Raises _NoDescriptorError if it could not be created, JournalFullError, or OSError.
        """
        path = self._path(sequence)
        written, hard_state = self._index.written, self._index.written_hard_state
        begin = Begin(FORMAT, self._cluster_id, written.index, written.term, hard_state)
        frame = encode_frame(MAGIC, sequence, encode_ops([begin]))
        try:
            file = self._disk.create_private(path + TEMPORARY)
            try:
                file.write(frame, 0)
                file.sync()
                self._disk.rename(path + TEMPORARY, path)
            except BaseException:
                file.close()
                raise
        except OSError as error:
            if is_out_of_descriptors(error):
                raise _NoDescriptorError from error
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise JournalFullError(f"no space left in {self._directory}") from error
        return file, len(frame)

    def _rolled(self, file: File, size_bytes: int) -> None:
        """Make the segment just created the newest one."""
        if self._file is not None:
            self._file.close()
        if self._segments:
            self._index.left(self._segments[-1])
        self._segments.append(self._sequence)
        self._file = file
        self._is_name_unsynced = True
        self._size_bytes = size_bytes
        self._total_bytes += size_bytes
        self._sequence += 1

    async def drop_prefix(self, index: int) -> None:
        """Remove segments without entries after `index`, up to which a durable snapshot reaches.

        Without a descriptor, some of them stay until a later call. Raises StorageError if a segment
        cannot be removed.
        """
        self._check_usable()
        assert not self._staged
        if self._is_removal_unsynced and not await self._sync_removal():
            return
        while len(self._segments) > 1 and not self._index.needed(self._segments[0], index):
            path = self._path(self._segments[0])

            def remove(path: str = path) -> int:
                size_bytes = self._disk.size(path)
                self._disk.remove(path)
                return size_bytes

            try:
                self._total_bytes -= await self._disk.run(remove)
            except OSError as error:
                raise self._fail(f"cannot remove {path}: {error}") from error
            self._index.removed(self._segments.pop(0))
            self._is_removal_unsynced = True
            if not await self._sync_removal():
                return

    async def _sync_removal(self) -> bool:
        """Sync the folder after a removal. Return False if there is no descriptor for it now."""
        try:
            is_synced = await self._disk.run(self._sync_folder)
        except OSError as error:
            raise self._fail(f"cannot sync {self._directory}: {error}") from error
        self._is_removal_unsynced = not is_synced
        return is_synced

    async def close(self) -> None:
        """Write the end marker and close. Unreadable bytes are then damage, not a torn write."""
        if self._failure is None:
            self._staged.append(Closed())
            try:
                await self.sync()
            except StorageError:
                pass  # only the end marker is missing
        self.abandon()

    def abandon(self) -> None:
        """Close without writing staged operations."""
        self._failure = self._failure or "it is closed"
        if self._file is not None:
            self._file.close()
            self._file = None

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise StorageError(f"the journal cannot be used: {self._failure}")

    def _fail(self, reason: str) -> StorageError:
        self._failure = reason
        return StorageError(reason)

    def _path(self, sequence: int) -> str:
        return os.path.join(self._directory, f"{sequence:020d}{SUFFIX}")

    # Opening

    def open(self) -> None:
        """Recover the journal from its folder, or create a new one.

        Blocking: call in `Disk.run`. Raises DamagedError if a segment is damaged or missing, and
        StorageError if the disk fails or the journal is of another cluster or a newer format.
        """
        self._failure = "it could not be opened"
        try:
            self._make_directory()
            self._disk.sync_dir(os.path.dirname(self._directory))
            names = self._tidy_up()
            for name in names:
                self._scan(name, newest=name == names[-1])
            self._index.settle()
            if not names:
                self._rolled(*self._make_segment(0))
            self._sync_dir()
            self._is_name_unsynced = False
        except (OSError, _NoDescriptorError) as error:
            raise StorageError(f"cannot open the journal in {self._directory}: {error}") from error
        self._failure = None

    def _make_directory(self) -> None:
        """Create the directory, accessible to this user only, since it contains credentials."""
        disk, directory = self._disk, self._directory
        if not disk.exists(directory):
            disk.make_dirs(directory)
            disk.make_private(directory)
            return
        files = (os.path.join(directory, name) for name in disk.list(directory))
        keep_private(disk, (directory, *files))

    def _tidy_up(self) -> list[int]:
        """Remove unfinished segments and return the others, oldest first."""
        found = []
        for name in self._disk.list(self._directory):
            if name.endswith(SUFFIX + TEMPORARY):
                self._disk.remove(os.path.join(self._directory, name))
            elif name.endswith(SUFFIX) and name.removesuffix(SUFFIX).isdecimal():
                found.append(int(name.removesuffix(SUFFIX)))
        return sorted(found)

    def _scan(self, segment: int, *, newest: bool) -> None:
        path = self._path(segment)
        if self._segments:
            if segment != self._sequence:
                raise DamagedError(
                    f"{self._path(self._sequence)} is missing: {path} does not continue"
                    f" {self._path(self._segments[-1])}, or the latter has lost its end"
                )
            self._index.left(self._segments[-1])
        self._segments.append(segment)
        self._sequence = segment
        data = self._disk.read_file(path)
        last_frame, end = self._replay(path, data)
        self._size_bytes = end
        self._total_bytes += end
        if not newest:
            if end < len(data):
                raise _damaged(path, end, "unreadable frame")
            return
        self._file = self._disk.open(path)
        if end < len(data):
            self.torn_bytes = len(data) - end
            self._file.truncate(end)
        self._file.write(data[last_frame:end], last_frame)
        self._file.sync()

    def _replay(self, path: str, data: bytes) -> tuple[int, int]:
        """Add the operations of a segment to the index.

        Returns the begin and the end of its last complete frame. Raises DamagedError if the
        segment is damaged.
        """
        last_frame = position = 0
        while position < len(data):
            frame = read_frame(MAGIC, data, position)
            if frame is None:
                if position == 0 or not is_torn(MAGIC, data, position):
                    raise _damaged(path, position, "unreadable frame")
                break
            if frame.sequence != self._sequence:
                raise _damaged(
                    path, position, f"frame {frame.sequence}, expected frame {self._sequence}"
                )
            ops = _decoded(path, position, frame.body)
            for number, op in enumerate(ops):
                if complaint := self._complaint(op, first=position == 0 and number == 0):
                    raise _damaged(path, position, complaint)
                self._index.stage(op)
            self._index.wrote(ops, self._segments[-1], position)
            self._sequence += 1
            last_frame, position = position, frame.end
        if position == 0:
            raise _damaged(path, 0, "the segment is empty")
        return last_frame, position

    def _complaint(self, op: Op, *, first: bool) -> str | None:
        """Return why the operation cannot come next; None if it can."""
        if isinstance(op, Begin) != first:
            return "segment header in the wrong place"
        match op:
            case Begin():
                return self._begin_complaint(op)
            case Entry() if op.index != self.last.index + 1 or op.term < self.last.term:
                return f"entry {op.index} of term {op.term} after {self.last}"
            case HardState() if op.term < self.hard_state.term:
                return f"term {op.term} after term {self.hard_state.term}"
            case Truncate() if not 0 < op.end_index <= self.last.index:
                return f"truncation to {op.end_index} after {self.last}"
        return None

    def _begin_complaint(self, op: Begin) -> str | None:
        position = LogPosition(op.index, op.term)
        if op.format > FORMAT:
            raise StorageError(
                f"{self._directory} has format {op.format} of a newer version; this version reads"
                f" format {FORMAT}; start the newer version"
            )
        if op.cluster_id != self._cluster_id:
            raise StorageError(
                f"{self._directory} belongs to cluster {op.cluster_id}, not to {self._cluster_id};"
                " choose another data directory"
            )
        if len(self._segments) == 1:
            self._index.stage(Reset(op.index, op.term))
            self._index.stage(op.hard_state)
            self._index.wrote([Reset(op.index, op.term), op.hard_state], self._segments[0], 0)
        elif position != self.last or op.hard_state != self.hard_state:
            return f"the segment continues {position}, not {self.last}"
        return None


def _one_frame(staged: list[Op]) -> list[Op]:
    """Return the next operations that fit into one frame; a truncation or reset begins a frame."""
    ops: list[Op] = []
    size_bytes = 0
    for op in staged:
        size_bytes += op_bytes(op)
        full = size_bytes > MAX_FRAME_BYTES or len(ops) == MAX_FRAME_OPS
        if ops and (full or isinstance(op, Truncate | Reset)):
            break
        ops.append(op)
    return ops


def _decoded(path: str, position: int, body: memoryview) -> list[Op]:
    try:
        return decode_ops(body)
    except ValueError as error:
        raise _damaged(path, position, str(error)) from None


def _damaged(path: str, position: int, what: str) -> DamagedError:
    return DamagedError(
        f"{path} is damaged at byte {position}: {what}; this node does not start, since the data"
        " after it cannot be trusted"
    )
