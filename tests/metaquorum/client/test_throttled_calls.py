"""Calls under a quota: the throttle time does not count for their deadline."""

import pytest

from metaquorum.client.administration.admin import AdminClient
from metaquorum.client.administration.quotas import QuotaEntity
from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.consumer import Consumer, Start
from metaquorum.client.errors import BrokerError
from metaquorum.client.producer import Appended, Producer, ProducerRecord
from metaquorum.client.trio_transport import TrioTransport
from tests.dataplane.serving import Simulated, simulated

TIMEOUT_S = 5.0
CLIENT = "slow"
WHERE = TopicPartition("t", 0)


def cluster_of(sim: Simulated) -> Cluster:
    transport = TrioTransport(sim.runtime.clock, sim.runtime.network)
    return Cluster(transport, [("server", 9092)], client_id=CLIENT, timeout_s=TIMEOUT_S)


async def limited(sim: Simulated, **quotas: float) -> None:
    """Set quotas of the client id, and wait until they are in force."""
    admin = AdminClient(
        Cluster(TrioTransport(sim.runtime.clock, sim.runtime.network), "server:9092")
    )
    await admin.alter_client_quotas({QuotaEntity(client_id=CLIENT): quotas})
    await sim.world.sleep(1)


@simulated()
async def test_a_producer_waits_out_its_quota_and_says_so(sim: Simulated) -> None:
    """At 10 kB/s a batch of 100 kB is paid for by 9 s, more than the timeout of a call."""
    await (await sim.connect()).create("t")
    await limited(sim, producer_byte_rate=10_000)
    cluster, waits = cluster_of(sim), []
    cluster.throttle_waits.begins = lambda api, seconds: waits.append((api, seconds))
    producer = Producer(cluster, batch_bytes=100_000)
    began = sim.world.now
    appended = await producer.send("t", [ProducerRecord(bytes(90_000))] * 4)
    assert sum(each.records for each in appended) == 4
    assert sim.world.now - began > 3 * TIMEOUT_S
    assert {api for api, _ in waits} == {"Produce"}
    assert max(seconds for _, seconds in waits) > TIMEOUT_S
    # A query that follows on the same connection waits too; its deadline begins then.
    assert (await cluster.topic("t", refresh=True)).partitions


@simulated()
async def test_a_consumer_waits_out_its_quota(sim: Simulated) -> None:
    await (await sim.connect()).create("t")
    await Producer(cluster_of(sim)).send("t", [ProducerRecord(bytes(90_000))] * 3)
    await limited(sim, consumer_byte_rate=10_000)
    consumer = Consumer(cluster_of(sim))
    await consumer.assign({WHERE: Start.beginning()})
    found = 0
    while found < 3:
        found += len(await consumer.poll(0.1))


@simulated()
async def test_batches_are_reported_also_if_another_one_fails(sim: Simulated) -> None:
    await (await sim.connect()).create("t", 2)
    producer = Producer(cluster_of(sim), batch_bytes=1000)
    known: list[Appended] = []
    producer.acknowledged = known.append
    records = [
        ProducerRecord(b"a", partition=0),
        ProducerRecord(b"b", partition=1),
        ProducerRecord(bytes(2_000_000), partition=0),
    ]
    with pytest.raises(BrokerError, match=r"max\.message\.bytes"):
        await producer.send("t", records)
    assert sorted(each.partition for each in known) == [0, 1]
