"""The offset up to which an interrupted copy of a log in another directory has its records."""

from pathlib import Path

import pytest

from metaquorum.dataplane.log.local_log import NO_CUT
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.replication.log_dir_mover import common_end, continues_at
from tests.dataplane.log.logs import append, cut, make_batch, open_log

RECORDS = 2  # in each batch


def log_of(folder: Path, *epochs: int, start: int = 0) -> PartitionLog:
    """Return a log of one batch for each of these leader epochs, from offset `start` on."""
    log = open_log(folder)
    if start:
        log.truncate_fully_and_start_at(start)
        log.least_cut = NO_CUT
    for epoch in epochs:
        append(log, make_batch(RECORDS, timestamp=1000), epoch=epoch)
    return log


@pytest.mark.parametrize(
    ("epochs", "of_copy", "batches"),
    [
        ((1, 1, 2, 3), (1, 1, 2, 3), 4),
        ((1, 1, 2, 3), (1, 1), 2),
        ((1, 1), (1, 1, 1, 1), 2),  # the log lost its end
        ((1, 1, 2, 2), (1, 1, 1, 1), 2),  # and continues with another epoch
        ((1, 1, 1, 2), (1, 1, 2, 2), 2),
        ((1, 3, 3, 3), (1, 2, 2, 3), 1),
        ((2, 2), (1, 1), 0),
        ((1, 1), (), 0),
        ((), (1, 1), 0),
    ],
)
def test_a_copy_continues_where_the_leader_epochs_differ(
    tmp_path: Path, epochs: tuple[int, ...], of_copy: tuple[int, ...], batches: int
) -> None:
    log, copy = log_of(tmp_path / "log", *epochs), log_of(tmp_path / "copy", *of_copy)
    assert common_end(log, copy) == batches * RECORDS


def test_records_that_were_deleted_meanwhile_are_not_compared(tmp_path: Path) -> None:
    log, copy = log_of(tmp_path / "log", 1, 2, 2, 3), log_of(tmp_path / "copy", 1, 2, 2)
    log.advance_log_start(3)
    assert common_end(log, copy) == 6
    cut(log, 4)
    append(log, make_batch(RECORDS, timestamp=1000), epoch=4)
    assert common_end(log, copy) == 4


def test_a_copy_that_ends_before_the_log_starts_begins_again(tmp_path: Path) -> None:
    """It would get a gap in its records, and would not know the producers of those in the gap."""
    log, copy = log_of(tmp_path / "log", 1, 1, 1, 1), log_of(tmp_path / "copy", 1)
    log.advance_log_start(5)
    assert continues_at(log, copy) is None
    append(copy, make_batch(RECORDS), epoch=1)
    append(copy, make_batch(RECORDS), epoch=1)
    assert continues_at(log, copy) == 6


def test_a_copy_of_other_records_before_the_log_start_begins_again(tmp_path: Path) -> None:
    """They are not visible, but the state of their producers would be."""
    copy = log_of(tmp_path / "copy", 1, 1, 1)
    for number, epochs in enumerate([(2, 2), ()]):
        log = log_of(tmp_path / f"log{number}", *epochs, start=4)
        assert continues_at(log, copy) is None
    assert continues_at(log_of(tmp_path / "same", 1, 1, start=4), copy) == 6


def test_a_copy_that_starts_after_the_log_begins_again(tmp_path: Path) -> None:
    """The log starts earlier again if a loss of power took its log start offset."""
    log, copy = log_of(tmp_path / "log", 1, 1, 1), log_of(tmp_path / "copy", 1, 1, start=2)
    assert continues_at(log, copy) is None
    log.advance_log_start(2)
    assert continues_at(log, copy) == 6


def test_the_copy_of_another_topic_begins_again(tmp_path: Path) -> None:
    log, copy = log_of(tmp_path / "log", 1), log_of(tmp_path / "copy", 1)
    assert continues_at(log, copy) == RECORDS
    copy.topic_id = bytes(15) + b"1"
    assert continues_at(log, copy) is None


def test_a_truncation_since_the_start_reaches_the_copy(tmp_path: Path) -> None:
    """The leader may have compacted its log, so the follower's is another one now."""
    log, copy = log_of(tmp_path / "log", 1, 1, 1), log_of(tmp_path / "copy", 1, 1, 1)
    cut(log, 4)
    append(log, make_batch(RECORDS), epoch=1)
    assert continues_at(log, copy) == 4
    log.truncate_fully_and_start_at(0)
    for _ in range(3):
        append(log, make_batch(RECORDS), epoch=1)
    assert continues_at(log, copy) is None


def test_a_copy_without_a_producer_whose_records_were_deleted_begins_again(tmp_path: Path) -> None:
    """A loss of power may have taken the producer snapshot with which the copy was started."""
    log, copy = log_of(tmp_path / "log"), log_of(tmp_path / "copy", 1, 1, start=2)
    append(log, make_batch(RECORDS, producer_id=7, sequence=0), epoch=1)
    append(log, make_batch(RECORDS), epoch=1)
    append(log, make_batch(RECORDS), epoch=1)
    append(log, make_batch(RECORDS, producer_id=8, sequence=0), epoch=1)  # yet to be copied
    log.advance_log_start(2)
    assert continues_at(log, copy) is None
    copy.producers.entries[7] = log.producers.entries[7]
    assert continues_at(log, copy) == 6
