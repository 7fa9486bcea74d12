"""Three nodes: what the log of a replica that a move adds takes over from the leader's."""

from typing import Any

from metaquorum.dataplane.partition.partition import Partition
from metaquorum.metadata.image import PartitionImage
from metaquorum.wire.primitives.errors import ErrorCode
from tests.dataplane.fetch.test_read_committed import COMMITTED, Transactions
from tests.dataplane.maintenance.test_log_cleaner import COMPACTED, records
from tests.dataplane.maintenance.test_log_cleaner import fill as fill_keys
from tests.dataplane.replication.moves.moving import move, start
from tests.dataplane.replication.moves.test_removed_replicas import check_no_ledger_entry
from tests.dataplane.replication.test_replicas import delete_records, fill
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import batch_of, records_of

IDEMPOTENT = 70


def numbered(sequence: int) -> bytearray:
    return batch_of(
        b"n%d" % sequence, producer_id=IDEMPOTENT, producer_epoch=0, base_sequence=sequence
    )


def state_of(partition: Partition) -> dict[str, Any]:
    """Return what a log must keep when its partition moves."""
    log = partition.log
    producers = {
        entry.producer_id: (entry.epoch, entry.last_sequence, entry.transaction_first_offset)
        for entry in log.producers.entries.values()
    }
    return {
        "start": log.log_start_offset,
        "end": log.log_end_offset,
        "epochs": log.epochs.entries,
        "producers": producers,
        "aborted": [
            (each.producer_id, each.first_offset, each.last_offset)
            for each in log.aborted_transactions(log.log_start_offset, log.log_end_offset)
        ],
        "stable": partition.last_stable_offset,
    }


async def read_committed(cluster: Together, node: int, offset: int) -> Any:
    client = await cluster.connect(node)
    row = await client.fetch("t", offset, **COMMITTED)
    assert row.error_code == ErrorCode.NONE
    return (
        [(record.offset, record.value) for record in records_of(row)],
        [(one.producer_id, one.first_offset) for one in row.aborted_transactions],
        row.last_stable_offset,
    )


@together()
async def test_a_new_replica_takes_over_starts_epochs_producers_and_aborted_transactions(
    cluster: Together,
) -> None:
    await cluster.create("t", (1, 2))
    client = await cluster.connect(1)
    await fill(client, "t", 10)
    assert (await delete_records(client, "t", 4)).error_code == ErrorCode.NONE
    await cluster.restart(1)  # another leader epoch, led by 2
    await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2))
    led = cluster.replica(2, "t")
    assert led.is_leader
    client = await cluster.connect(2)
    for sequence in range(3):
        await client.produce("t", numbered(sequence))
    log = Transactions(led)
    log.send(1)
    log.send(2)
    log.end(1, commit=False)
    log.end(2, commit=True)
    log.send(3)  # remains open
    await cluster.until(lambda: led.high_watermark == led.log.log_end_offset)
    expected, read = state_of(led), await read_committed(cluster, 2, 4)
    assert (expected["start"], expected["stable"]) == (4, expected["end"] - 1)
    assert len(expected["epochs"]) == 2

    await move(cluster, "t", 2, 3)
    added = cluster.replica(3, "t")
    await cluster.until(lambda: added.high_watermark == expected["end"])
    assert state_of(added) == expected
    await move(cluster, "t", 3)
    assert await read_committed(cluster, 3, 4) == read
    assert state_of(added) == expected
    client = await cluster.connect(3)
    repeated = await client.produce("t", numbered(2))
    assert repeated.base_offset < expected["end"]
    await client.produce("t", numbered(4), error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    await client.produce("t", numbered(3))

    before = state_of(added)
    await cluster.kill(3)
    await cluster.restart(3)
    await cluster.until(lambda: cluster.replica(3, "t").is_leader)
    after = state_of(cluster.replica(3, "t"))
    assert {**after, "epochs": None} == {**before, "epochs": None}


@together()
async def test_a_compacted_topic_moves_with_its_gaps_and_markers(cluster: Together) -> None:
    await cluster.create("t", (1, 2), **COMPACTED)
    client = await cluster.connect(1)
    led = cluster.replica(1, "t")
    await fill_keys(client, "t", 30)
    log = Transactions(led)
    log.send(1)
    log.send(2)
    log.end(1, commit=False)
    log.end(2, commit=True)
    await fill_keys(client, "t", 90)
    began = len(await records(client, "t"))
    await cluster.world.sleep(60.0)
    await cluster.until(lambda: led.high_watermark == led.log.log_end_offset)
    before = await records(client, "t")
    assert len(before) < began - 30
    await move(cluster, "t", 3)
    added = cluster.replica(3, "t")
    assert await records(await cluster.connect(3), "t") == before
    assert added.log.log_end_offset == led.log.log_end_offset
    assert not added.last_stable_offset < added.high_watermark


@together()
async def test_a_new_replica_on_a_new_disk_has_lost_nothing(cluster: Together) -> None:
    await cluster.create("t", (1, 2))
    await fill(await cluster.connect(1), "t", 5)
    await cluster.kill(3)
    await cluster.until(lambda: cluster.worker(1).image.workers[3].fenced)
    await start(cluster, "t", 1, 3)
    cluster.nodes[3].machine.lose_disk()
    cluster.nodes[3].boot()
    seen: list[PartitionImage] = []

    def has_moved() -> bool:
        seen.append(cluster.state("t", 1))
        return seen[-1].replicas == seen[-1].isr == (1, 3)

    await cluster.until(has_moved)
    assert {state.blank for state in seen} == {()}
    await cluster.until(lambda: cluster.nodes[3].serving)
    check_no_ledger_entry(cluster)
    assert cluster.replica(3, "t").log.log_end_offset == 5
