"""Consumer and range reader with read_committed against a node, with random transactions."""

from random import Random

import pytest

from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.consumer import Consumer, Start
from metaquorum.client.trio_transport import TrioTransport
from metaquorum.spark.gaps import GapReason
from metaquorum.spark.options import Connecting, FetchOptions, ReadOptions, Subscribe
from metaquorum.spark.planning import _make_plan
from metaquorum.spark.range_reader import RangeReader
from tests.dataplane.fetch.test_read_committed import Transactions
from tests.dataplane.serving import Simulated, simulated

WHERE = TopicPartition("t", 0)
OPTIONS = ReadOptions(
    FetchOptions(Connecting("server:9092"), read_committed=True), Subscribe(("t",))
)


def write(log: Transactions, draw: Random) -> tuple[int, dict[int, bytes]]:
    """Write transactions; return the first open one's offset, and the committed records below."""
    opened: dict[int, list[int]] = {}
    committed: dict[int, bytes] = {}
    for number in range(300):
        producer = draw.randrange(1, 6)
        if producer in opened and draw.random() < 0.3:
            commit = draw.random() < 0.5
            log.end(producer, commit=commit)
            for offset in opened.pop(producer):
                if not commit:
                    del committed[offset]
        else:
            value = b"%d" % number
            offset = log.send(producer, value)
            committed[offset] = value
            opened.setdefault(producer, []).append(offset)
    stable = min(offsets[0] for offsets in opened.values())
    return stable, {offset: value for offset, value in committed.items() if offset < stable}


@pytest.mark.parametrize("seed", range(5))
@simulated()
async def test_committed_records_are_read_up_to_the_first_open_transaction(
    sim: Simulated, seed: int
) -> None:
    client = await sim.connect()
    await client.create("t", segment_bytes=1 << 20)
    log = Transactions(sim.worker.replica_manager.by_name("t", 0))
    stable, wanted = write(log, Random(seed))
    cluster = Cluster(
        TrioTransport(sim.runtime.clock, sim.runtime.network),
        [("server", 9092)],
        client_id="reader",
        timeout_s=20.0,
        random=Random(seed),
    )
    consumer = Consumer(cluster, read_committed=True)
    await consumer.assign({WHERE: Start.beginning()})
    assert await consumer.end_offsets() == {WHERE: stable}
    found: dict[int, bytes] = {}
    while consumer.positions[WHERE] < stable:
        for record in await consumer.poll():
            assert record.value is not None
            found[record.offset] = record.value
    assert found == wanted
    assert await consumer.poll(0.1) == []  # nothing of the open transactions

    plan = await _make_plan(cluster, OPTIONS)
    assert [(each.start, each.end) for each in plan.ranges] == [(0, stable)]
    reader = RangeReader(cluster, plan.ranges[0], OPTIONS.fetch, is_compacted=False)
    rows: dict[int, bytes] = {}
    async for batch in reader.read():
        rows |= dict(zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True))
    assert rows == wanted
    report = reader.report
    assert report is not None
    assert set(report.missing) <= {GapReason.ABORTED, GapReason.CONTROL}
    assert report.records + sum(report.missing.values()) == stable
    cluster.close()
