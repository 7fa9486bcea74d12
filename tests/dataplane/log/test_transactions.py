"""Transactions in a log: markers, aborted ranges in `.txnindex`, and the first unstable offset."""

from functools import partial
from pathlib import Path

import pytest
import trio

from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments.aborted import AbortedTransaction
from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.dataplane.log.segments.markers import MARKER_BYTES
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.records import Record, batches, encode_batch
from tests.dataplane.log.compaction.compacted import append_records, clean
from tests.dataplane.log.logs import (
    EPOCH,
    SMALL,
    UnsyncedDisk,
    append,
    close_clean,
    cut,
    headers_of,
    log_files,
    open_log,
)

ROLLING = LogConfig(segment_bytes=300, index_interval_bytes=100)


def send(
    log: PartitionLog,
    producer_id: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    transactional: bool = True,
) -> int:
    """Append a batch of a producer, and return its first offset."""
    batch = encode_batch(
        [Record(number, 1000, b"k", b"v" * 20) for number in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return append(log, batch).first_offset


def end(
    log: PartitionLog,
    producer_id: int,
    commit: bool = False,
    *,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    version: int = 0,
    leader_epoch: int = EPOCH,
) -> int:
    """Append a marker, and return its offset."""
    marker = TransactionMarker(producer_id, epoch, coordinator_epoch, commit, version)
    return log.append_marker(marker, leader_epoch, 2000).first_offset


def refusal(log: PartitionLog, producer_id: int, **rest: int) -> ErrorCode:
    before = log.log_end_offset
    with pytest.raises(KafkaError) as caught:
        end(log, producer_id, **rest)  # type: ignore[arg-type]
    assert log.log_end_offset == before
    return caught.value.code


def refused_batch(log: PartitionLog, sequence: int, **rest: bool) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        send(log, 7, sequence, **rest)  # type: ignore[arg-type]
    return caught.value.code


def fill(log: PartitionLog) -> list[AbortedTransaction]:
    """Append overlapping transactions over several segments; return the aborted ones."""
    send(log, 1, 0, 2)  # 0-1
    send(log, 2, 0)  # 2
    end(log, 1)  # 3
    send(log, 1, 2)  # 4
    end(log, 2)  # 5
    end(log, 1, commit=True)  # 6
    send(log, 3, 0)  # 7
    for number in range(4):  # 8-15
        send(log, 4, 2 * number)
        end(log, 4, commit=number % 2 == 1, epoch=0)
        log.producers.entries[4].batches.clear()
        log.producers.entries[4].epoch = -1
    end(log, 3)  # 16
    send(log, 5, 0)  # 17: open
    return [
        AbortedTransaction(1, 0, 3, 2),
        AbortedTransaction(2, 2, 5, 4),
        AbortedTransaction(4, 8, 9, 7),
        AbortedTransaction(4, 12, 13, 7),
        AbortedTransaction(3, 7, 16, 17),
    ]


def all_aborted(log: PartitionLog) -> list[AbortedTransaction]:
    return log.aborted_transactions(0, log.log_end_offset)


def index_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.txnindex"))}


def test_a_marker_is_a_control_batch_as_kafka_writes_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 7, 0)
    assert end(log, 7, commit=True, coordinator_epoch=5) == 1
    ((position, header),) = list(batches(log.read(1, 1000, 2).read()))
    assert (header.batch_bytes, position) == (MARKER_BYTES, 0)
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    assert (header.producer_id, header.leader_epoch) == (7, EPOCH)
    assert log.producers.entries[7].coordinator_epoch == 5
    send(log, 7, 1)  # the sequence continues in the same epoch
    end(log, 7, epoch=1, coordinator_epoch=5)
    assert refused_batch(log, 2) is ErrorCode.INVALID_PRODUCER_EPOCH
    send(log, 7, 0, epoch=1)  # and begins again with a new one


def test_markers_are_fenced_by_producer_and_coordinator_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    end(log, 9, epoch=3, coordinator_epoch=2)  # unknown producers may be ended
    assert refusal(log, 9, epoch=2, coordinator_epoch=9) is ErrorCode.INVALID_PRODUCER_EPOCH
    fenced = refusal(log, 9, epoch=3, coordinator_epoch=1)
    assert fenced is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    end(log, 9, epoch=3, coordinator_epoch=2)
    send(log, 9, 0, epoch=3)
    end(log, 9, epoch=3, coordinator_epoch=2, version=1)


def test_with_an_epoch_per_transaction_a_late_marker_ends_no_later_transaction(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    send(log, 9, 0, epoch=3)
    assert refusal(log, 9, epoch=3, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    end(log, 9, epoch=4, version=2)
    end(log, 9, epoch=4, version=2)  # repeated
    send(log, 9, 0, epoch=4)
    assert refusal(log, 9, epoch=4, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    log.producers.entries[9].epoch = 32767  # no epoch is left
    end(log, 9, epoch=32767, version=2)
    assert log.first_unstable_offset(log.log_end_offset) is None


def test_a_producer_with_an_open_transaction_sends_transactional_batches_only(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    send(log, 7, 0, transactional=False)
    send(log, 7, 1)
    refused = refused_batch(log, 2, transactional=False)
    assert refused is ErrorCode.INVALID_TXN_STATE
    wrong = refused_batch(log, 9, transactional=False)
    assert wrong is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    end(log, 7, commit=True)
    send(log, 7, 2, transactional=False)


def test_a_batch_of_a_coordinator_has_no_sequence(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 7, -1, epoch=2)
    send(log, 7, -1, 3, epoch=2)
    assert [mark.last_sequence for mark in log.producers.entries[7].batches] == [-1, -1]
    with pytest.raises(KafkaError):
        send(log, 7, -1, epoch=1)
    end(log, 7, commit=True, epoch=2)
    log.roll(0)
    trio.run(close_clean, log)
    again = open_log(tmp_path, clean=True)
    assert again.producers.entries[7].batches[-1].last_offset == 3


def test_a_transaction_is_unstable_until_its_marker_is_replicated(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.first_unstable_offset(0) is None
    send(log, 1, 0)  # 0
    send(log, 2, 0)  # 1
    end(log, 2)  # 2
    send(log, 3, 0)  # 3
    assert log.first_unstable_offset(1) == 0
    end(log, 1, commit=True)  # 4
    assert log.first_unstable_offset(2) == 0
    assert log.first_unstable_offset(4) == 0
    assert log.first_unstable_offset(5) == 3
    log.advance_log_start(4)  # DeleteRecords beyond the first offset of an open transaction
    assert log.first_unstable_offset(5) == 4
    end(log, 3)  # 5
    assert log.first_unstable_offset(5) == 4
    assert log.first_unstable_offset(6) is None


def test_aborted_transactions_of_a_range(tmp_path: Path) -> None:
    log = open_log(tmp_path, ROLLING)
    aborted = fill(log)
    assert len(log_files(tmp_path)) > 4
    assert all_aborted(log) == aborted
    assert log.first_unstable_offset(log.log_end_offset) == 17
    for start in range(18):
        for stop in range(start + 1, 19):
            found = set(log.aborted_transactions(start, stop))
            needed = {
                each for each in aborted if each.last_offset >= start and each.first_offset < stop
            }
            assert needed == found


def test_a_follower_writes_the_same_index(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "leader", ROLLING)
    aborted = fill(leader)
    follower = open_log(tmp_path / "follower", ROLLING)
    for segment in leader.segments:
        data = segment.file.get().read(segment.size_bytes, 0)
        follower.append_as_follower(data, headers_of(data), 0)
    assert all_aborted(follower) == aborted
    assert index_files(tmp_path / "follower") == index_files(tmp_path / "leader")
    assert follower.first_unstable_offset(follower.log_end_offset) == 17


@pytest.mark.parametrize("clean_stop", [True, False])
def test_a_restart_keeps_open_and_aborted_transactions(tmp_path: Path, clean_stop: bool) -> None:
    log = open_log(tmp_path, ROLLING)
    aborted = fill(log)
    before = index_files(tmp_path)
    if clean_stop:
        trio.run(close_clean, log)
    else:
        for path in tmp_path.glob("*.txnindex"):
            path.write_bytes(path.read_bytes()[:40] + b"torn")
    again = open_log(tmp_path, ROLLING, clean=clean_stop)
    assert index_files(tmp_path) == before
    assert all_aborted(again) == aborted
    assert again.first_unstable_offset(again.log_end_offset) == 17
    end(again, 5)
    assert all_aborted(again) == [*aborted, AbortedTransaction(5, 17, 18, 19)]


@pytest.mark.parametrize("damage", [b"", b"\x00\x01", b"\x00" * 34, b"\xff" * 68])
@pytest.mark.parametrize("snapshots", [True, False])
def test_a_wrong_index_of_a_clean_stop_is_rebuilt(
    tmp_path: Path, damage: bytes, snapshots: bool
) -> None:
    log = open_log(tmp_path, ROLLING)
    aborted = fill(log)
    trio.run(close_clean, log)
    before = index_files(tmp_path)
    assert len(before) > 2
    for name, content in before.items():
        (tmp_path / name).write_bytes(damage or content[:-1])
    if not snapshots:
        for path in sorted(tmp_path.glob("*.snapshot"))[:-1]:
            path.unlink()
    again = open_log(tmp_path, ROLLING, clean=True)
    assert index_files(tmp_path) == before
    assert all_aborted(again) == aborted
    assert again.first_unstable_offset(again.log_end_offset) == 17


def test_an_unclean_start_removes_an_index_without_aborted_transactions(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 1, 0)
    stale = tmp_path / f"{0:020d}.txnindex"
    stale.write_bytes(AbortedTransaction(1, 0, 1, 2).encode())
    (tmp_path / f"{90:020d}.txnindex").write_bytes(b"")
    again = open_log(tmp_path)
    assert not index_files(tmp_path)
    assert all_aborted(again) == []


@pytest.mark.parametrize("offset", range(18))
def test_truncation_opens_transactions_again(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path, ROLLING)
    aborted = fill(log)
    cut(log, offset)
    kept = [each for each in aborted if each.last_offset < log.log_end_offset]
    assert all_aborted(log) == kept
    starts = {1: 0, 2: 2, 3: 7}
    ended = {each.producer_id for each in kept}
    open_ = [at for id_, at in starts.items() if id_ not in ended and at < log.log_end_offset]
    if 4 < log.log_end_offset <= 6:
        open_.append(4)
    unstable = log.first_unstable_offset(log.log_end_offset)
    if open_:
        assert unstable == min(open_)
    trio.run(close_clean, log)
    again = open_log(tmp_path, ROLLING, clean=True)
    assert all_aborted(again) == kept
    assert again.first_unstable_offset(again.log_end_offset) == unstable


def test_full_truncation_and_retention_remove_the_index(tmp_path: Path) -> None:
    log = open_log(tmp_path, ROLLING)
    aborted = fill(log)
    log.advance_log_start(log.active_segment_offset)
    log.recovery_point = log.log_end_offset
    trio.run(log.delete_old_segments, UnsyncedDisk())
    log.remove_deleted()
    names = {path.stem for path in log_files(tmp_path)}
    assert {name.removesuffix(".txnindex") for name in index_files(tmp_path)} <= names
    assert all_aborted(log) == [each for each in aborted if each.last_offset >= int(min(names))]
    log.noted_log_start_offset = 0
    log.truncate_fully_and_start_at(40)
    assert not index_files(tmp_path)
    assert log.first_unstable_offset(40) is None
    assert all_aborted(log) == []


def test_a_failed_write_of_the_index_is_repeated(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 1, 0)
    folder = tmp_path / f"{0:020d}.txnindex"
    folder.mkdir()  # the file cannot be created
    end(log, 1)
    assert log.aborted_transactions(0, 2) == [AbortedTransaction(1, 0, 1, 2)]
    folder.rmdir()
    send(log, 1, 1)
    end(log, 1)
    assert len(folder.read_bytes()) == 68


def test_the_expiry_removes_no_open_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for producer_id in range(150):
        send(log, producer_id, 0)
    log.producers.expire(1 << 60, 1)
    assert len(log.producers) == 150
    for producer_id in range(1000, 1200):
        send(log, producer_id, 0, transactional=False)
    log.producers.expire(1 << 60, 1)
    assert len(log.producers) == 150
    assert log.first_unstable_offset(log.log_end_offset) == 0


def test_compaction_keeps_the_ranges_of_aborted_batches_that_it_read(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=1000, index_interval_bytes=300)
    log = open_log(tmp_path, config)
    rows = [(b"k", b"x")]
    append_records(log, rows, producer_id=7, sequence=0, transactional=True)  # 0
    end(log, 7, leader_epoch=1)  # 1
    append_records(log, rows, producer_id=7, sequence=1, transactional=True)  # 2
    end(log, 7, leader_epoch=1)  # 3
    append_records(log, rows, producer_id=8, sequence=0, transactional=True)  # 4
    end(log, 8, commit=True, leader_epoch=1)  # 5
    log.roll(0)
    first, second = AbortedTransaction(7, 0, 1, 2), AbortedTransaction(7, 2, 3, 4)
    assert all_aborted(log) == [first, second]
    trio.run(partial(clean, log, now_ms=0))
    assert all_aborted(log) == [first, second]  # both had batches; that at 2 stays without records
    trio.run(partial(clean, log, first_dirty=6, end=6, now_ms=10))
    assert all_aborted(log) == [second]
    log.remove_deleted()
    assert list(index_files(tmp_path).values()) == [second.encode()]
    assert open_log(tmp_path, config).aborted_transactions(0, 6) == [second]


@pytest.mark.parametrize("settled", [True, False])
def test_recovery_completes_a_cleaned_index(tmp_path: Path, settled: bool) -> None:
    log = open_log(tmp_path, SMALL)
    send(log, 1, 0)
    end(log, 1)
    log.roll(0)
    trio.run(close_clean, log)
    entry = AbortedTransaction(1, 0, 1, 2).encode()
    name = f"{0:020d}"
    (tmp_path / f"{name}.txnindex").rename(tmp_path / f"{name}.txnindex.swap")
    if not settled:
        (tmp_path / f"{name}.log").rename(tmp_path / f"{name}.log.swap")
        (tmp_path / f"{name}.txnindex").write_bytes(entry * 2)  # index of the replaced segment
    again = open_log(tmp_path, SMALL, recovery_point=2)
    assert index_files(tmp_path) == {f"{name}.txnindex": entry}
    assert all_aborted(again) == [AbortedTransaction(1, 0, 1, 2)]
    assert not list(tmp_path.glob("*.swap"))
