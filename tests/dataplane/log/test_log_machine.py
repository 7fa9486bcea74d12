"""State machine: a log that is written, truncated, closed, killed and torn, with a model of it."""

import shutil
import tempfile
from pathlib import Path

import trio
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.dataplane.log.segments.files import OpenFiles
from metaquorum.dataplane.log.segments.index import OffsetIndex
from metaquorum.dataplane.log.segments.names import OFFSET_INDEX, file_name
from tests.dataplane.log.logs import (
    UnsyncedDisk,
    append,
    close_clean,
    cut,
    headers_of,
    log_files,
    make_batch,
    offset_for_timestamp,
    offsets,
    open_log,
    read_headers,
)
from tests.examples import examples

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=100)
MAX_OPEN_FILES = 3


class LogMachine(RuleBasedStateMachine):
    log: PartitionLog

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp()) / "t-0"
        self.batches: list[tuple[int, int]] = []  # first and last offsets
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.sequence = 0
        self.synced = 0
        self.open()

    def open(self, *, clean: bool = False, recovery_point: int = 0) -> None:
        self.files = OpenFiles(UnsyncedDisk(), str(self.folder.parent), MAX_OPEN_FILES)
        self.log = open_log(
            self.folder,
            CONFIG,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=self.start,
            files=self.files,
        )

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.files.close()
            shutil.rmtree(self.folder.parent)

    def forget_from(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch[1] < end]
        self.end = end
        self.sequence = end
        self.synced = min(self.synced, end)

    @rule(count=st.integers(1, 4), size=st.sampled_from([1, 30, 400]), bump=st.booleans())
    def append(self, count: int, size: int, bump: bool) -> None:
        self.epoch += bump
        data = make_batch(count, timestamp=1000 + self.end, value=b"v" * size)
        result = append(self.log, data, epoch=self.epoch)
        assert (result.first_offset, result.last_offset) == (self.end, self.end + count - 1)
        self.batches.append((self.end, self.end + count - 1))
        self.end += count

    @rule(gap=st.integers(0, 3), count=st.integers(1, 3))
    def follow(self, gap: int, count: int) -> None:
        first = self.end + gap
        data = make_batch(count, timestamp=1000 + first, base_offset=first, leader_epoch=self.epoch)
        self.log.append_as_follower(memoryview(data), headers_of(data), 0)
        self.batches.append((first, first + count - 1))
        self.end = first + count

    @rule()
    def roll(self) -> None:
        self.log.roll(0)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end), label="offset")
        self.synced = min(self.synced, self.log.offsets_after_truncation(offset).recovery_point)
        cut(self.log, offset)
        if offset < self.end:
            self.batches = [batch for batch in self.batches if batch[1] < offset]
            assert self.log.log_end_offset <= offset
            self.end = self.log.log_end_offset
            assert not self.batches or self.batches[-1][1] < self.end
            self.synced = min(self.synced, self.end)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def advance_start(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.end), label="start")
        self.log.advance_log_start(self.start)
        trio.run(self.log.delete_old_segments, UnsyncedDisk())
        self.log.remove_deleted()
        self.batches = [batch for batch in self.batches if batch[1] >= self.start]

    @rule()
    def flush(self) -> None:
        trio.run(self.log.flush, UnsyncedDisk())
        self.synced = self.end
        assert self.log.recovery_point == self.end

    @rule()
    def close_and_open(self) -> None:
        trio.run(close_clean, self.log)
        assert len(self.files) == 0
        self.open(clean=True, recovery_point=self.log.recovery_point)

    @rule()
    def kill_and_open(self) -> None:
        """Kill the process, which loses its memory but no writes, and open the log."""
        self.files.close()
        self.open(recovery_point=self.synced)

    @precondition(lambda self: self.end > self.synced)
    @rule(data=st.data())
    def lose_the_unsynced_tail(self, data: st.DataObject) -> None:
        path = log_files(self.folder)[-1]
        content = path.read_bytes()
        headers = headers_of(content)
        kept = sum(h.batch_bytes for h in headers if h.last_offset < self.synced)
        size = data.draw(st.integers(kept, len(content)), label="size")
        rubbish = data.draw(st.sampled_from([b"", b"\0" * 100, b"\1\2\3"]), label="rubbish")
        self.files.close()
        torn = content[:size] + rubbish
        path.write_bytes(torn)
        at, end = 0, int(path.stem)
        for header in headers:
            at += header.batch_bytes
            if torn[:at] == content[:at]:  # the torn bytes may equal the ones that follow
                end = header.next_offset
        self.open(recovery_point=self.synced)
        assert self.log.log_end_offset == max(end, self.start)
        self.forget_from(max(end, self.start))

    @invariant()
    def the_log_is_the_list(self) -> None:
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        headers = read_headers(self.log)
        found = [pair for pair in offsets(headers) if pair[1] >= self.start]
        assert found == self.batches
        assert len(self.files) <= MAX_OPEN_FILES

    @invariant()
    def any_place_and_bound_agree(self) -> None:
        for offset in range(self.start, self.end, 1 + (self.end - self.start) // 5):
            found = headers_of(self.log.read(offset, 500, self.end, min_one=True).read())
            expected = [pair for pair in self.batches if pair[1] >= offset]
            assert offsets(found) == expected[: len(found)]
            assert bool(found) == bool(expected)
        middle = (self.start + self.end) // 2
        before = offsets(read_headers(self.log, self.start, middle))
        assert [pair for pair in before if pair[1] >= self.start] == [
            pair for pair in self.batches if pair[1] < middle
        ]

    @invariant()
    def timestamps_find_their_records(self) -> None:
        for first, last in self.batches[:: 1 + len(self.batches) // 4]:
            offset = max(first, self.start)
            found = offset_for_timestamp(self.log, 1000 + offset, self.end)
            assert found is not None
            assert (found.offset, found.timestamp) == (offset, 1000 + offset)
            assert last >= offset

    @invariant()
    def every_index_entry_is_a_batch(self) -> None:
        for segment in self.log._segments:
            places = {at: header.last_offset for at, header in segment.walk(0)}
            for number in range(len(segment.index)):
                relative, position = segment.index.entry(number)
                assert places[position] == segment.base_offset + relative

    @invariant()
    def epochs_are_those_of_the_batches(self) -> None:
        for header in read_headers(self.log)[::3]:
            assert self.log.epochs.epoch_at(max(header.base_offset, self.start)) == (
                header.leader_epoch
            )


LogMachine.TestCase.settings = examples(30, stateful_step_count=20)
TestLog = LogMachine.TestCase


def test_an_index_on_disk_is_read_where_it_is_not_in_memory(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(index_interval_bytes=0))
    for _ in range(600):
        append(log, make_batch(1))
    path = tmp_path / file_name(0, OFFSET_INDEX)
    assert path.stat().st_size > 400 * OffsetIndex.FORMAT.size
    for offset in range(0, 600, 50):
        assert read_headers(log, offset)[0].base_offset == offset
