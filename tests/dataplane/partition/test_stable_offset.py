"""The last stable offset of a partition, and the requests that wait for it."""

from pathlib import Path

from metaquorum.dataplane.log.segments.markers import MARKER_BYTES
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.dataplane.partition.partition import UNKNOWN_BYTES, Partition
from tests.dataplane.log.logs import append, headers_of, make_batch, open_log
from tests.dataplane.log.test_transactions import send
from tests.dataplane.partition.test_partition import config_of
from tests.dataplane.replication.replicas import Setting, state


class _Notes:
    """Watcher that records its notifications; -1 for any other change."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def note(self, new_bytes: int) -> bool:
        self.seen.append(new_bytes)
        return True

    def wake(self) -> None:
        self.seen.append(-1)


def led(folder: Path, replicas: tuple[int, ...]) -> tuple[Partition, _Notes]:
    log = open_log(folder / "t-0")
    partition = Partition("t", bytes(16), 0, Setting().context, log, config_of())
    partition.assign(state(1, 3, replicas, replicas))
    notes = _Notes()
    partition.stable_waiters.add(notes)
    return partition, notes


def abort(partition: Partition, producer_id: int) -> None:
    partition.log.append_marker(TransactionMarker(producer_id, 0, 0, False), 3, 0)
    partition.appended(MARKER_BYTES)


def test_watchers_of_a_single_replica_are_notified_when_the_stable_offset_moves(
    tmp_path: Path,
) -> None:
    partition, notes = led(tmp_path, (1,))
    append(partition.log, make_batch(2))
    partition.appended(100)
    assert (partition.last_stable_offset, notes.seen) == (2, [100])
    send(partition.log, 7, 0)
    partition.appended(50)
    append(partition.log, make_batch(1))
    partition.appended(60)
    assert (partition.high_watermark, partition.last_stable_offset) == (4, 2)
    assert notes.seen == [100]
    abort(partition, 7)
    assert (partition.last_stable_offset, notes.seen) == (5, [100, UNKNOWN_BYTES])
    append(partition.log, make_batch(1))
    partition.appended(70)
    assert notes.seen == [100, UNKNOWN_BYTES, 70]
    partition.log_start_moved()
    partition.wake_waiters()
    assert notes.seen[-2:] == [0, -1]
    partition.log.close()


def test_with_followers_a_transaction_ends_once_its_marker_is_replicated(tmp_path: Path) -> None:
    partition, notes = led(tmp_path, (1, 2))
    send(partition.log, 7, 0)
    partition.appended(50)
    send(partition.log, 8, 0)
    partition.appended(50)
    abort(partition, 7)
    abort(partition, 8)
    stable = []
    for offset in range(1, 5):
        partition.fetched_by(2, 1, offset, 0)
        assert partition.high_watermark == offset
        stable.append(partition.last_stable_offset)
    assert stable == [0, 0, 1, 4]
    assert len(notes.seen) == 2
    assert partition.log.producers.transactions is not None
    assert not partition.log.producers.transactions.open
    partition.log.close()


def test_ended_transactions_are_forgotten_without_any_reader(tmp_path: Path) -> None:
    partition, notes = led(tmp_path, (1,))
    partition.stable_waiters.discard(notes)
    for number in range(50):
        send(partition.log, 7, number)
        partition.appended(50)
        abort(partition, 7)
    transactions = partition.log.producers.transactions
    assert transactions is not None
    assert transactions.unreplicated_count == 0
    partition.log.close()


def test_a_follower_has_a_stable_offset_of_its_own(tmp_path: Path) -> None:
    partition, _ = led(tmp_path, (1,))
    send(partition.log, 7, 0)
    abort(partition, 7)
    data = partition.log.read(0, 10_000, 2).read()
    log = open_log(tmp_path / "follower")
    follower = Partition("t", bytes(16), 0, Setting().context, log, config_of())
    follower.assign(state(2, 3, (1, 2), (1, 2)))
    log.append_as_follower(data, headers_of(data), 0)
    follower.follow_to(1)
    assert follower.last_stable_offset == 0
    follower.follow_to(2)
    assert follower.last_stable_offset == 2
    partition.log.close()
    log.close()
