"""The offset up to which an interrupted copy of a log in another directory has its records."""

from pathlib import Path

import pytest

from dataplane.log.partition_log import PartitionLog
from dataplane.replication.log_dir_mover import common_end
from tests.dataplane.log.logs import append, cut, make_batch, open_log

RECORDS = 2  # in each batch


def log_of(folder: Path, *epochs: int) -> PartitionLog:
    """Return a log of one batch for each of these leader epochs."""
    log = open_log(folder)
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
