"""The journal compared with a list of entries, for all torn writes and flipped bytes."""

import errno
import os
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.quorum.storage.framing import DamagedError
from metaquorum.quorum.storage.journal import Journal, JournalFullError, JournalWaitError
from metaquorum.quorum.storage.journal_ops import Entry, HardState, LogPosition, decode_ops
from metaquorum.runtime.interfaces import File, StorageError
from tests.examples import examples
from tests.metaquorum.quorum.storage.crash_disk import Crash, CrashDisk

DIRECTORY = "/data/metadata"
SEGMENT_BYTES = 300


def opened(disk: CrashDisk, cluster_id: str = "cluster") -> Journal:
    journal = Journal(disk, DIRECTORY, cluster_id, SEGMENT_BYTES)
    journal.open()
    return journal


def sync(journal: Journal) -> None:
    trio.run(journal.sync)


def entries_of(journal: Journal) -> list[Entry]:
    first, last = journal.base.index + 1, journal.last.index
    return journal.read(first, last) if first <= last else []


def segment_names(disk: CrashDisk) -> list[str]:
    return sorted(name for name in disk.files if name.endswith(".journal"))


def written(disk: CrashDisk, count: int, payload_bytes: int = 30) -> list[Entry]:
    """Return a journal of `count` entries, each synced separately, and abandoned as by a kill."""
    journal = opened(disk)
    journal.set_hard_state(1, 7)
    entries = [
        Entry(index, 1 + index // 4, Random(index).randbytes(payload_bytes))
        for index in range(1, count + 1)
    ]
    for entry in entries:
        journal.append(entry)
        sync(journal)
    journal.abandon()
    return entries


@dataclass
class Model:
    """Expected content of the journal, as a list."""

    base: LogPosition = field(default_factory=lambda: LogPosition(0, 0))
    entries: list[Entry] = field(default_factory=list)
    hard_state: HardState = field(default_factory=lambda: HardState(0, -1))

    @property
    def last(self) -> LogPosition:
        return (
            LogPosition(self.entries[-1].index, self.entries[-1].term)
            if self.entries
            else self.base
        )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(0, 60)),
        st.tuples(st.just("truncate"), st.integers(0, 6)),
        st.tuples(st.just("vote"), st.integers(0, 2)),
        st.tuples(st.just("sync")),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("power"), st.integers(0, 2**16)),
        st.tuples(st.just("drop"), st.integers(0, 12)),
        st.tuples(st.just("reset"), st.integers(0, 20)),
    ),
    max_size=40,
)


class Pair:
    """The journal and the model, with the same operations."""

    def __init__(self) -> None:
        self.disk = CrashDisk()
        self.journal = opened(self.disk)
        self.model = Model()

    def step(self, name: str, *arguments: Any) -> None:
        getattr(self, name)(*arguments)

    def append(self, term_step: int, size: int) -> None:
        last = self.model.last
        entry = Entry(last.index + 1, last.term + term_step, bytes([size]) * size)
        self.journal.append(entry)
        self.model.entries.append(entry)

    def truncate(self, count: int) -> None:
        if count and count <= len(self.model.entries):
            self.journal.truncate(self.model.entries[-count].index)
            del self.model.entries[-count:]

    def vote(self, term_step: int) -> None:
        self.model.hard_state = HardState(self.model.hard_state.term + term_step, term_step)
        self.journal.set_hard_state(self.model.hard_state.term, term_step)

    def sync(self) -> None:
        sync(self.journal)

    def reopen(self) -> None:
        self.sync()
        trio.run(self.journal.close)
        self.journal = opened(self.disk)

    def power(self, seed: int) -> None:
        self.sync()
        self.disk = self.disk.survivor(Random(seed))
        self.journal = opened(self.disk)

    def drop(self, index: int) -> None:
        self.sync()
        limit = self.journal.base.index + index
        trio.run(self.journal.drop_prefix, limit)
        base = self.journal.base
        assert base.index <= max(limit, self.model.base.index)
        self.model.entries = [each for each in self.model.entries if each.index > base.index]
        self.model.base = base

    def reset(self, ahead: int) -> None:
        last = self.model.last
        position = LogPosition(last.index + ahead, last.term + 1)
        self.journal.reset(position)
        self.model.entries, self.model.base = [], position


@examples(150)
@given(STEPS)
def test_the_journal_holds_what_a_list_would(steps: list[tuple[Any, ...]]) -> None:
    pair = Pair()
    for step in steps:
        pair.step(*step)
        assert pair.journal.last == pair.model.last
        assert pair.journal.hard_state == pair.model.hard_state
    pair.sync()
    assert pair.journal.durable == pair.journal.last
    again = opened(pair.disk)
    for journal in (pair.journal, again):
        # Entries before the base may reappear if their segment still exists.
        held = [each for each in entries_of(journal) if each.index > pair.model.base.index]
        assert held == pair.model.entries
        for entry in pair.model.entries:
            assert journal.term_at(entry.index) == entry.term


def test_nothing_staged_counts_as_durable() -> None:
    disk = CrashDisk()
    journal = opened(disk)
    for index in (1, 2, 3):
        journal.append(Entry(index, 1, b"x"))
    assert (journal.last.index, journal.durable.index) == (3, 0)
    sync(journal)
    assert journal.durable.index == 3
    journal.truncate(2)
    assert journal.durable.index == 1
    for index in (2, 3):
        journal.append(Entry(index, 2, b"y"))
    assert journal.durable.index == 1, "other entries had these indices when they were synced"
    sync(journal)
    assert journal.durable == LogPosition(3, 2)


def test_a_journal_cut_anywhere_in_its_last_frame_keeps_all_the_others() -> None:
    disk = CrashDisk()
    entries = written(disk, 3)
    (name,) = segment_names(disk)
    data = bytes(disk.files[name].data)
    start = data.rindex(b"MQJ")
    for end in range(start, len(data)):
        disk.files[name].data[:] = data[:end]
        journal = opened(disk)
        assert entries_of(journal) == entries[:2]
        assert journal.torn_bytes == end - start
        assert journal.hard_state == HardState(1, 7)
        assert disk.size(name) == start


def test_every_flipped_byte_is_noticed_and_never_served() -> None:
    disk = CrashDisk()
    entries = written(disk, 12)
    originals = {name: bytes(disk.files[name].data) for name in segment_names(disk)}
    assert len(originals) > 2
    for name, data in originals.items():
        for position in range(len(data)):
            disk.files[name].data[position] ^= 0x10
            flipped = bytes(disk.files[name].data)
            with pytest.raises(DamagedError, match=r"damaged at byte"):
                opened(disk)
            assert disk.files[name].data == flipped, "evidence was changed"
            disk.files[name].data[:] = data
    assert entries_of(opened(disk)) == entries


def test_a_blank_sector_in_the_last_frame_is_a_tear_and_before_it_is_damage() -> None:
    disk = CrashDisk()
    entries = written(disk, 2, payload_bytes=2000)
    name = segment_names(disk)[-1]
    disk.files[name].data[1024:1536] = bytes(512)
    last = opened(disk)
    assert entries_of(last) == entries[:1]

    disk = CrashDisk()
    written(disk, 2, payload_bytes=2000)
    first = segment_names(disk)[0]
    assert first != name
    disk.files[first].data[1024:1536] = bytes(512)
    with pytest.raises(DamagedError):
        opened(disk)


def test_a_blank_sector_before_a_readable_frame_is_damage() -> None:
    disk = CrashDisk()
    journal = Journal(disk, DIRECTORY, "cluster", 1 << 20)
    journal.open()
    for index in (1, 2):
        journal.append(Entry(index, 1, b"x" * 2000))
        sync(journal)
    (name,) = segment_names(disk)
    disk.files[name].data[512:1024] = bytes(512)
    with pytest.raises(DamagedError):
        opened(disk)


def test_a_missing_segment_is_noticed() -> None:
    disk = CrashDisk()
    written(disk, 12)
    del disk.files[segment_names(disk)[1]]
    with pytest.raises(DamagedError, match="is missing"):
        opened(disk)


def test_a_journal_that_cannot_be_read_is_kept_as_it_is() -> None:
    """A voter with a new journal would have lost its vote and the entries that it acknowledged."""

    class Unreadable(CrashDisk):
        failing = ""

        def read_file(self, path: str) -> bytes:
            if path == self.failing:
                raise OSError(errno.EIO, "Input/output error", path)
            return super().read_file(path)

    disk = Unreadable()
    entries = written(disk, 20)
    before = {name: bytes(disk.files[name].data) for name in segment_names(disk)}
    for name in before:
        disk.failing = name
        with pytest.raises(StorageError, match="Input/output error"):
            opened(disk)
        assert {name: bytes(disk.files[name].data) for name in segment_names(disk)} == before
    disk.failing = ""
    journal = opened(disk)
    assert (entries_of(journal), journal.hard_state) == (entries, HardState(1, 7))


def test_another_clusters_journal_and_a_newer_format_are_refused() -> None:
    disk = CrashDisk()
    written(disk, 1)
    with pytest.raises(StorageError, match="belongs to cluster cluster, not to other"):
        opened(disk, "other")


def test_entries_refused_for_want_of_room_never_come_back() -> None:
    disk = CrashDisk()
    journal = opened(disk)
    journal.append(Entry(1, 1, b"kept"))
    sync(journal)
    disk.full_at_bytes = disk.used_bytes() + 100
    for index in range(2, 6):
        journal.append(Entry(index, 1, b"refused" * 10))
    with pytest.raises(JournalFullError):
        sync(journal)
    assert journal.last == journal.durable == LogPosition(1, 1)
    for seed in range(20):
        assert [e.index for e in entries_of(opened(disk.survivor(Random(seed))))] == [1]
    disk.full_at_bytes = None
    journal.append(Entry(2, 1, b"after"))
    sync(journal)
    assert [e.payload for e in entries_of(opened(disk))] == [b"kept", b"after"]


class Exhausted(CrashDisk):
    """A disk that can open no file or folder for the operations named in `refused`."""

    number = errno.EMFILE
    refused: frozenset[str] = frozenset()

    def _check(self, operation: str, path: str) -> None:
        if operation in self.refused:
            raise OSError(self.number, os.strerror(self.number), path)

    def open(self, path: str, *, create: bool = False) -> File:
        self._check("open", path)
        return super().open(path, create=create)

    def create_private(self, path: str) -> File:
        self._check("create", path)
        return super().create_private(path)

    def sync_dir(self, path: str) -> None:
        self._check("sync_dir", path)
        super().sync_dir(path)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_without_a_descriptor_for_the_next_segment_the_current_one_continues(number: int) -> None:
    disk = Exhausted()
    journal = opened(disk)
    disk.number, disk.refused = number, frozenset(("create", "open", "sync_dir"))
    for index in range(1, 4):
        journal.append(Entry(index, 1, bytes(SEGMENT_BYTES)))
        sync(journal)
    journal.set_hard_state(2, 7)
    sync(journal)
    assert journal.segments == 1
    journal.append(Entry(4, 2, bytes(SEGMENT_BYTES)))
    sync(journal)
    journal.append(Entry(5, 2, b"refused"))  # not beyond four times the size of a segment
    with pytest.raises(JournalFullError, match="raise the limit of open files") as caught:
        sync(journal)
    assert "descriptor" in caught.value.reason
    assert journal.last == journal.durable == LogPosition(4, 2)
    journal.set_hard_state(3, 7)  # a vote is still written
    sync(journal)
    for seed in range(8):
        held = opened(disk.survivor(Random(seed)))
        assert (held.last.index, held.hard_state) == (4, HardState(3, 7))
    disk.refused = frozenset()
    journal.append(Entry(5, 3, b"after"))
    sync(journal)
    assert journal.segments == 2
    assert [entry.index for entry in entries_of(opened(disk))] == [1, 2, 3, 4, 5]


def test_nothing_is_appended_to_a_segment_whose_name_is_not_synced() -> None:
    disk = Exhausted()
    journal = opened(disk)
    journal.append(Entry(1, 1, bytes(SEGMENT_BYTES)))
    sync(journal)
    disk.refused = frozenset(("sync_dir",))
    for _ in range(2):
        journal.append(Entry(2, 1, b"refused"))
        with pytest.raises(JournalFullError, match="raise the limit of open files"):
            sync(journal)
        assert journal.last == journal.durable == LogPosition(1, 1)
    journal.set_hard_state(2, 7)
    journal.append(Entry(2, 2, b"after"))
    for _ in range(2):
        with pytest.raises(JournalWaitError, match="raise the limit of open files"):
            sync(journal)
    for seed in range(8):
        held = opened(disk.survivor(Random(seed)))
        assert (held.last.index, held.hard_state) == (1, HardState(0, -1))
    disk.refused = frozenset(("open",))  # the new segment is open already
    sync(journal)
    for seed in range(8):
        held = opened(disk.survivor(Random(seed)))
        assert (held.last.index, held.hard_state) == (2, HardState(2, 7))


def test_a_removal_that_cannot_be_synced_is_synced_before_the_next() -> None:
    disk = Exhausted()
    entries = written(disk, 12)
    journal = opened(disk)
    before = journal.segments
    disk.refused = frozenset(("sync_dir",))
    for _ in range(2):
        trio.run(journal.drop_prefix, 12)
        assert journal.segments == before - 1
        assert len(segment_names(disk)) == before - 1
    for seed in range(8):
        assert entries_of(opened(disk.survivor(Random(seed))))[-1] == entries[-1]
    disk.refused = frozenset()
    trio.run(journal.drop_prefix, 12)
    assert journal.segments == 1
    assert entries_of(opened(disk)) == entries_of(journal)


class Flickering(Exhausted):
    """A disk that has no descriptor for a random part of the files and folders, until a crash."""

    def __init__(self, seed: int, fail_at: int) -> None:
        super().__init__(fail_at=fail_at)
        self._random = Random(seed)
        self.is_flickering = False
        self.refusals = 0

    def _check(self, operation: str, path: str) -> None:
        if self.is_flickering and not self.crashed and self._random.random() < 0.5:
            self.refusals += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)


def test_what_was_written_without_descriptors_survives_every_crash() -> None:
    refusals = 0
    for seed in range(6):
        fail_at = 0
        while True:
            disk = Flickering(seed, fail_at)
            durable, vote = LogPosition(0, 0), HardState(0, -1)
            asked = [vote]
            try:
                journal = opened(disk)
                disk.is_flickering = True
                for step in range(1, 16):
                    if step % 5 == 0:
                        journal.set_hard_state(step, 7)
                        asked.append(journal.hard_state)
                    last = journal.last
                    journal.append(Entry(last.index + 1, max(last.term, step), bytes(120)))
                    while True:
                        try:
                            sync(journal)
                        except JournalFullError:
                            assert journal.last == journal.durable == durable
                        except JournalWaitError:
                            continue
                        break
                    durable, vote = journal.durable, journal.hard_state
                    if step % 3 == 0:
                        trio.run(journal.drop_prefix, durable.index - 2)
            except Crash:
                pass
            refusals += disk.refusals
            if not disk.crashed:
                break
            for survivor in (disk.survivor(None), disk.survivor(Random(fail_at))):
                found = opened(survivor)
                assert found.last.index >= durable.index, (seed, fail_at)
                assert found.term_at(durable.index) == durable.term, (seed, fail_at)
                assert found.hard_state in asked[asked.index(vote) :], (seed, fail_at)
            fail_at += 1
    assert refusals > 100


def test_what_a_killed_process_left_unsynced_is_synced_before_it_is_built_upon() -> None:
    fail_at = 0
    while True:
        disk = CrashDisk(fail_at=fail_at)
        try:
            written(disk, 6)
        except Crash:
            pass
        if not disk.crashed:
            return
        disk = disk.survivor(None)  # killed
        journal = opened(disk)
        journal.append(Entry(journal.last.index + 1, 9, b"after the kill"))
        sync(journal)
        held = entries_of(journal)
        for seed in range(8):
            assert entries_of(opened(disk.survivor(Random(seed)))) == held, fail_at
        fail_at += 1


def test_after_a_failed_sync_the_journal_is_of_no_use_until_it_is_opened_again() -> None:
    disk = CrashDisk()
    journal = opened(disk)
    journal.append(Entry(1, 1, b"unknown"))
    disk.failing_syncs = 1
    with pytest.raises(StorageError):
        sync(journal)
    with pytest.raises(StorageError, match="cannot be used"):
        journal.append(Entry(2, 1, b""))
    again = opened(disk)
    assert entries_of(opened(disk.survivor(Random(1)))) == entries_of(again)


@given(st.binary(max_size=60))
def test_operations_that_make_no_sense_are_a_value_error(data: bytes) -> None:
    try:
        decode_ops(memoryview(data))
    except ValueError:
        pass
