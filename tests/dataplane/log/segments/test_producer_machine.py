"""State machine: correct producers on a log that is truncated, deleted from, closed and killed.

With any loss of uncommitted and old records, the next batch of each producer is accepted, and a
batch that is sent again is found to be a duplicate if it is still in the log.
"""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import trio
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.dataplane.log.segments.files import OpenFiles
from metaquorum.dataplane.log.segments.producers import REMEMBERED_BATCHES
from tests.dataplane.log.logs import (
    UnsyncedDisk,
    append,
    close_clean,
    cut,
    headers_of,
    make_batch,
    open_log,
)
from tests.examples import examples

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=100)
PRODUCERS = (0, 1, 2)
ANY_PRODUCER = st.sampled_from(PRODUCERS)


@dataclass
class Sent:
    epoch: int
    sequence: int
    count: int
    offset: int


@dataclass
class Reported:
    """A producer with the batches that it has appended, deleted ones included."""

    epoch: int = 0
    batches: list[Sent] = field(default_factory=list)

    @property
    def next_sequence(self) -> int:
        if not self.batches or self.batches[-1].epoch != self.epoch:
            return 0
        last = self.batches[-1]
        return last.sequence + last.count


class ProducerMachine(RuleBasedStateMachine):
    log: PartitionLog

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp()) / "t-0"
        self.told = {producer_id: Reported() for producer_id in PRODUCERS}
        self.start = self.committed = self.end = self.synced = 0
        self.open()

    def open(self, *, clean: bool = False, recovery_point: int = 0) -> None:
        self.files = OpenFiles(UnsyncedDisk(), str(self.folder.parent))
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

    def batch(self, producer_id: int, sent: Sent, *, leader_epoch: int = -1) -> bytearray:
        return make_batch(
            sent.count,
            producer_id=producer_id,
            producer_epoch=sent.epoch,
            sequence=sent.sequence,
            base_offset=sent.offset,
            leader_epoch=leader_epoch,
        )

    @rule(
        producer_id=ANY_PRODUCER,
        count=st.integers(1, 3),
        begins_epoch=st.booleans(),
        follows=st.booleans(),
    )
    def send(self, producer_id: int, count: int, begins_epoch: bool, follows: bool) -> None:
        told = self.told[producer_id]
        if begins_epoch and told.batches:
            told.epoch += 1
        sent = Sent(told.epoch, told.next_sequence, count, self.end)
        if follows:
            data = self.batch(producer_id, sent, leader_epoch=3)
            self.log.append_as_follower(memoryview(data), headers_of(data), 0)
        else:
            sent_as = Sent(sent.epoch, sent.sequence, count, 0)
            result = append(self.log, self.batch(producer_id, sent_as))
            assert (result.first_offset, result.is_duplicate) == (self.end, False)
        told.batches.append(sent)
        self.end += count

    @rule(producer_id=ANY_PRODUCER, back=st.integers(1, REMEMBERED_BATCHES))
    def send_again(self, producer_id: int, back: int) -> None:
        told = self.told[producer_id]
        if len(told.batches) < back:
            return
        sent = told.batches[-back]
        if sent.offset < self.start or sent.epoch != told.batches[-1].epoch:
            return
        again = Sent(sent.epoch, sent.sequence, sent.count, 0)
        result = append(self.log, self.batch(producer_id, again))
        assert (result.first_offset, result.is_duplicate) == (sent.offset, True)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        ends = sorted(
            {s.offset + s.count for told in self.told.values() for s in told.batches}
            | {self.committed}
        )
        self.committed = data.draw(
            st.sampled_from([end for end in ends if end >= self.committed]), label="committed"
        )

    @rule()
    def roll(self) -> None:
        self.log.roll(0)

    @precondition(lambda self: self.end > self.committed)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.committed, self.end - 1), label="offset")
        self.synced = min(self.synced, self.log.offsets_after_truncation(offset).recovery_point)
        cut(self.log, offset)
        self.end = self.log.log_end_offset
        assert self.committed <= self.end <= offset
        for told in self.told.values():
            told.batches = [sent for sent in told.batches if sent.offset < self.end]
            # A producer keeps its epoch if the batches with it were truncated.
            told.epoch = max(told.epoch, told.batches[-1].epoch if told.batches else 0)
        self.synced = min(self.synced, self.end)

    @precondition(lambda self: self.committed > self.start)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.committed), label="start")
        self.log.advance_log_start(self.start)
        trio.run(self.log.delete_old_segments, UnsyncedDisk())
        self.log.remove_deleted()

    @rule()
    def flush(self) -> None:
        trio.run(self.log.flush, UnsyncedDisk())
        self.synced = self.end

    @rule()
    def close_and_open(self) -> None:
        trio.run(close_clean, self.log)
        self.open(clean=True, recovery_point=self.log.recovery_point)
        self.synced = self.end

    @rule()
    def kill_and_open(self) -> None:
        self.files.close()
        self.open(recovery_point=self.synced)
        self.synced = self.end

    @invariant()
    def whoever_is_known_is_known_by_the_last_batch(self) -> None:
        for producer_id, told in self.told.items() if hasattr(self, "log") else ():
            entry = self.log.producers.entries.get(producer_id)
            there = [sent for sent in told.batches if sent.offset >= self.start]
            assert entry is not None or not there
            if entry is not None:
                last = told.batches[-1]
                assert (entry.epoch, entry.last_sequence) == (
                    last.epoch,
                    last.sequence + last.count - 1,
                )


TestProducers = ProducerMachine.TestCase
TestProducers.settings = examples(30, stateful_step_count=30)
