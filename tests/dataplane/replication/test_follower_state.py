"""A follower's truncation rules, on real logs: it truncates only what its leader does not have."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.fetch.reader import diverging_epoch
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication import follower_state
from metaquorum.wire.messages.fetch import EpochEndOffset, FetchPartition
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.records import BatchHeader
from tests.dataplane.log.logs import append, make_batch, open_log, read_headers
from tests.dataplane.partition.test_partition import config_of
from tests.dataplane.replication.replicas import Setting
from tests.examples import examples

EVERYTHING = 1 << 20


def replica(folder: Path, replica_id: int) -> Partition:
    log = open_log(folder / f"t-{replica_id}")
    return Partition("t", bytes(16), 0, Setting(replica_id).context, log, config_of())


def lead(partition: Partition, epoch: int) -> None:
    partition.log.assign_epoch(epoch)


def contents(partition: Partition) -> list[BatchHeader]:
    """Return the batch headers, whose offsets, epochs and checksums identify the contents."""
    return read_headers(partition.log)


def fetch(follower: Partition, leader: Partition, epoch: int, max_bytes: int = EVERYTHING) -> bool:
    """Do one fetch and apply the response, without a network; return whether more are needed."""
    want = follower_state.wanted(follower, epoch, max_bytes)
    asked = FetchPartition(
        partition=0, fetch_offset=want.fetch_offset, last_fetched_epoch=want.last_fetched_epoch
    )
    diverging = diverging_epoch(leader, asked) if want.last_fetched_epoch >= 0 else None
    if diverging is not None:
        cut = follower_state.diverging_cut(follower, epoch, diverging)
        assert follower_state.truncate(follower, cut, follower_state.offsets_after(follower, cut))
        assert cut.offset < cut.end_offset, "an empty truncation would be repeated without end"
        return True
    end = leader.log.log_end_offset
    data = leader.log.read(want.fetch_offset, max_bytes, end, min_one=True).read()
    if (start := follower_state.begins_within(follower, data)) is not None:
        follower_state.start_anew(follower, start)
    follower_state.append(follower, data, now_ms=0)
    follower_state.follow(follower, leader.high_watermark, leader.log.log_start_offset)
    return follower.log.log_end_offset < end


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Partition, Partition]:
    return replica(tmp_path, 1), replica(tmp_path, 2)


def test_a_follower_holds_what_its_leader_holds(pair: tuple[Partition, Partition]) -> None:
    leader, follower = pair
    lead(leader, 0)
    for number in range(5):
        append(leader.log, make_batch(2, timestamp=number), epoch=0)
    leader.high_watermark = 6
    while fetch(follower, leader, 0, max_bytes=150):
        pass
    assert contents(follower) == contents(leader)
    assert follower.log.epochs.entries == leader.log.epochs.entries
    assert follower.high_watermark == 6


def test_what_the_leader_never_had_is_cut(pair: tuple[Partition, Partition]) -> None:
    old, new = pair
    lead(old, 0)
    append(old.log, make_batch(3), epoch=0)
    fetch(new, old, 0)
    append(old.log, make_batch(2, timestamp=7), epoch=0)  # never replicated
    lead(new, 1)
    append(new.log, make_batch(1, timestamp=9), epoch=1)
    while fetch(old, new, 1):
        pass
    assert contents(old) == contents(new)
    assert [header.leader_epoch for header in contents(old)] == [0, 1]


def test_a_truncation_tells_what_had_been_committed(pair: tuple[Partition, Partition]) -> None:
    partition, _ = pair
    append(partition.log, make_batch(10), epoch=0)
    partition.high_watermark = 10
    cut = follower_state.diverging_cut(partition, 4, EpochEndOffset(epoch=-1, end_offset=0))
    assert cut == follower_state.Truncation(0, 10, 4, 10, last_epoch=0)


def test_a_truncation_tells_of_the_whole_batch_that_goes_across_it(
    pair: tuple[Partition, Partition],
) -> None:
    """If retention deleted the start of the leader's epoch, the leader reports a later start."""
    old, new = pair
    for partition in pair:
        append(partition.log, make_batch(2), epoch=0)
    append(old.log, make_batch(4, timestamp=7), epoch=0)  # 2 to 5, never replicated
    lead(new, 1)
    append(new.log, make_batch(6, timestamp=9), epoch=1)
    new.log.advance_log_start(4)
    asked = FetchPartition(partition=0, fetch_offset=6, last_fetched_epoch=0)
    diverging = diverging_epoch(new, asked)
    assert diverging == EpochEndOffset(epoch=0, end_offset=4)
    cut = follower_state.diverging_cut(old, 1, diverging)
    assert (cut.offset, cut.end_offset) == (2, 6)
    assert follower_state.truncate(old, cut, follower_state.offsets_after(old, cut))
    assert old.log.log_end_offset == 2


def test_a_high_watermark_never_lies_behind_the_end_of_the_log(
    pair: tuple[Partition, Partition],
) -> None:
    """Otherwise the next append would be committed before another replica has the records."""
    leader, follower = pair
    append(leader.log, make_batch(10), epoch=0)
    fetch(follower, leader, 0)
    follower_state.follow(follower, 30, 0)
    assert follower.high_watermark == 10
    append(follower.log, make_batch(2), epoch=0)
    for offset, end in ((10, 10), (0, 0)):
        cut = follower_state.Truncation(offset, follower.log.log_end_offset, 1, 10)
        assert follower_state.truncate(follower, cut, follower_state.offsets_after(follower, cut))
        assert follower.log.log_end_offset == end
        assert follower.high_watermark == end


def test_damaged_records_are_not_written(pair: tuple[Partition, Partition]) -> None:
    leader, follower = pair
    append(leader.log, make_batch(1), epoch=0)
    append(leader.log, make_batch(1), epoch=0)
    data = bytearray(leader.log.read(0, EVERYTHING, 2).read())
    data[-1] ^= 1
    with pytest.raises(KafkaError) as caught:
        follower_state.append(follower, data, now_ms=0)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert follower.log.log_end_offset == 0


def test_a_damaged_header_from_the_leader_is_reported_as_damage(
    pair: tuple[Partition, Partition],
) -> None:
    """An empty log looks at the header first; the node of the follower must not end there."""
    leader, follower = pair
    append(leader.log, make_batch(1), epoch=0)
    data = bytearray(leader.log.read(0, EVERYTHING, 1).read())
    data[16] = 1  # the magic of an older format
    assert follower_state.begins_within(follower, data) is None
    with pytest.raises(KafkaError):
        follower_state.append(follower, data, now_ms=0)
    assert follower.log.log_end_offset == 0


def test_more_batches_than_a_segment_takes_are_appended_to_several(
    pair: tuple[Partition, Partition],
) -> None:
    """The leader's segment is older than a lower segment.bytes."""
    leader, follower = pair
    for number in range(7):
        append(leader.log, make_batch(1, timestamp=number), epoch=0)
    data = leader.log.read(0, EVERYTHING, 7).read()
    follower.log.configure(replace(follower.log.config, segment_bytes=len(data) // 3))
    assert follower_state.append(follower, data, now_ms=0) == len(data)
    assert contents(follower) == contents(leader)
    assert len(follower.log.read(0, EVERYTHING, 7).read()) <= len(data) // 3


def test_a_batch_that_is_larger_than_a_lowered_segment_size_is_appended(
    pair: tuple[Partition, Partition],
) -> None:
    """A new replica would never have it otherwise."""
    leader, follower = pair
    for number in range(3):
        append(leader.log, make_batch(1, timestamp=number), epoch=0)
    data = leader.log.read(0, EVERYTHING, 3).read()
    follower.log.configure(replace(follower.log.config, segment_bytes=10))
    assert follower_state.append(follower, data, now_ms=0) == len(data)
    assert contents(follower) == contents(leader)
    with pytest.raises(KafkaError) as caught:  # as a leader
        append(follower.log, make_batch(1), epoch=0)
    assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_batch_that_is_not_whole_is_left_for_the_next_fetch(
    pair: tuple[Partition, Partition],
) -> None:
    leader, follower = pair
    append(leader.log, make_batch(1), epoch=0)
    append(leader.log, make_batch(1), epoch=0)
    data = leader.log.read(0, EVERYTHING, 2).read()
    follower_state.append(follower, data[:-1], now_ms=0)
    assert follower.log.log_end_offset == 1


def test_the_start_of_the_log_follows_no_further_than_what_is_committed(
    pair: tuple[Partition, Partition],
) -> None:
    leader, follower = pair
    append(leader.log, make_batch(10), epoch=0)
    fetch(follower, leader, 0)
    follower_state.follow(follower, 0, 5)
    assert follower.log.log_start_offset == 0
    follower_state.follow(follower, 8, 5)
    assert follower.log.log_start_offset == 5


def test_a_log_that_ends_before_its_leaders_begins_starts_anew(
    pair: tuple[Partition, Partition],
) -> None:
    leader, follower = pair
    append(leader.log, make_batch(10), epoch=0)
    append(follower.log, make_batch(2), epoch=0)
    leader.log.advance_log_start(6)
    follower_state.start_anew(follower, 6)
    assert follower.log.log_end_offset == 6
    assert follower.high_watermark == 6


def test_an_empty_log_takes_a_batch_within_which_its_leaders_log_begins(
    pair: tuple[Partition, Partition],
) -> None:
    leader, follower = pair
    for size in (4, 10, 3):
        append(leader.log, make_batch(size), epoch=0)
    leader.high_watermark = 17
    leader.log.advance_log_start(9)
    follower_state.start_anew(follower, 9)
    assert not fetch(follower, leader, epoch=0)
    assert contents(follower) == contents(leader)
    assert follower.log.log_start_offset == 9
    assert follower.log.log_end_offset == 17


TERMS = st.lists(
    st.tuples(
        st.integers(0, 2),  # leader
        st.integers(0, 3),  # batches that the leader appends
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=4
        ),  # follower, and number of its fetches
    ),
    min_size=1,
    max_size=8,
)


@given(TERMS)
@examples(60)
def test_logs_agree_after_any_row_of_leaders(
    terms: list[tuple[int, int, list[tuple[int, int]]]],
) -> None:
    """After unclean elections too, all logs equal the last leader's, byte for byte."""
    with tempfile.TemporaryDirectory() as folder:
        replicas = [replica(Path(folder), number) for number in range(3)]
        for epoch, (leads, batches, fetches) in enumerate([*terms, (terms[-1][0], 1, [])]):
            leader = replicas[leads]
            for partition in replicas:
                if partition is not leader:
                    partition.log.drop_unused_epochs()
            lead(leader, epoch)
            for number in range(batches):
                # A batch with the same offset and another leader epoch is a different batch.
                append(leader.log, make_batch(1, timestamp=1000 * epoch + number), epoch=epoch)
            for who, times in fetches:
                if replicas[who] is leader:
                    continue
                for _ in range(times):
                    fetch(replicas[who], leader, epoch, max_bytes=100)
        for partition in replicas:
            while partition is not leader and fetch(partition, leader, epoch):
                pass
            assert contents(partition) == contents(leader)
            assert partition.log.epochs.entries == leader.log.epochs.entries
        for partition in replicas:
            partition.log.close()
