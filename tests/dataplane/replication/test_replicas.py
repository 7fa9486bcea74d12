"""Three nodes: truncation, catch-up and commits among the replicas of one partition."""

import errno
from typing import Any

import pytest

from metaquorum.metadata.quota_lookup import CLIENT_ID, USER, EntityPart
from metaquorum.quorum.controller.quota_changes import (
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaChange,
    QuotaOp,
)
from metaquorum.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from metaquorum.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.changes import change_quotas
from tests.dataplane.replication.test_deposed_leaders import cut_off
from tests.dataplane.replication.together import Together, run_together, together
from tests.dataplane.serving import RawClient, batch_of

E = ErrorCode


async def fill(client: RawClient, topic: str, records: int, acks: int = -1) -> None:
    for number in range(records):
        await client.produce(topic, batch_of(b"%d" % number), acks=acks)


async def delete_records(
    client: RawClient, topic: str, offset: int, timeout_ms: int = 10_000
) -> Any:
    asked = DeleteRecordsPartition(partition_index=0, offset=offset)
    message = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[asked])], timeout_ms=timeout_ms
    )
    return (await client.call(ApiKey.DELETE_RECORDS, message)).topics[0].partitions[0]


async def latest(client: RawClient, topic: str, replica_id: int = -1) -> Any:
    asked = ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=-1)
    message = ListOffsetsRequest(
        replica_id=replica_id, topics=[ListOffsetsTopic(name=topic, partitions=[asked])]
    )
    return (await client.call(ApiKey.LIST_OFFSETS, message)).topics[0].partitions[0]


@together()
async def test_quotas_of_clients_do_not_slow_down_replication(cluster: Together) -> None:
    """Fetches of followers are exempt from all default quotas of clients."""
    await cluster.create("t", (1, 2, 3))
    for key in (CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE):
        for entity in (EntityPart(CLIENT_ID, None), EntityPart(USER, None)):
            change = QuotaChange((entity,), [QuotaOp(key, 1.0)])
            await change_quotas(cluster.worker(1).controller_client, change)
    client = await cluster.connect(1)
    began = cluster.world.now
    for _ in range(20):
        await client.produce("t", batch_of(bytes(50_000)), acks=-1)
    assert cluster.world.now - began < 5
    assert cluster.replica(3, "t").log.log_end_offset == 20


@together()
async def test_deleted_records_are_gone_at_all_live_replicas_when_it_is_answered(
    cluster: Together,
) -> None:
    await cluster.create("t", (1, 2, 3))
    client = await cluster.connect(1)
    await fill(client, "t", 10)
    began = cluster.world.now
    row = await delete_records(client, "t", 7)
    assert (row.error_code, row.low_watermark) == (E.NONE, 7)
    assert cluster.world.now - began < 0.2, "no long poll was waited for"
    starts = [cluster.replica(node, "t").log.log_start_offset for node in (1, 2, 3)]
    assert starts == [7, 7, 7]


@together()
async def test_deleting_records_does_not_wait_for_a_replica_that_is_fenced(
    cluster: Together,
) -> None:
    await cluster.create("t", (1, 2, 3))
    client = await cluster.connect(1)
    await fill(client, "t", 10)
    await cluster.until(lambda: cluster.replica(3, "t").high_watermark == 10)
    await cluster.kill(3)
    row = await delete_records(client, "t", 7)
    assert (row.error_code, row.low_watermark) == (E.NONE, 7)
    await cluster.restart(3)
    await cluster.until(lambda: cluster.replica(3, "t").log.log_start_offset == 7)


@together()
async def test_an_empty_replica_follows_a_log_that_begins_within_a_batch(cluster: Together) -> None:
    await cluster.create("t", (1, 2, 3))
    await cluster.kill(3)
    await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2))
    client = await cluster.connect(1)
    await client.produce("t", batch_of(*[b"%d" % number for number in range(10)]))
    await fill(client, "t", 2)
    row = await delete_records(client, "t", 7)
    assert (row.error_code, row.low_watermark) == (E.NONE, 7)
    await cluster.restart(3)
    await cluster.until(lambda: set(cluster.state("t", 1).isr) == {1, 2, 3})
    found = cluster.replica(3, "t").log
    assert (found.log_start_offset, found.log_end_offset) == (7, 12)


@pytest.mark.parametrize("size", [1, 3])
@together()
async def test_a_record_that_the_leader_never_had_goes_also_where_its_log_begins_behind_it(
    cluster: Together, size: int
) -> None:
    """Epochs alone cannot show the divergence: the leader has deleted the records to compare.

    If the record stayed, the next leader would treat the producer's retry as a duplicate and
    respond with the old offset, where no consumer could read the record. With three records, the
    leader's log starts within the batch, which could not be appended after the record either.
    """
    first, second = (
        batch_of(b"%d" % n, producer_id=7, producer_epoch=0, base_sequence=n) for n in range(2)
    )
    await cluster.create("t", (1, 2))
    client = await cluster.connect(1)
    await client.produce("t", bytearray(first))
    cut_off(cluster, 1)
    await client.produce("t", bytearray(second), acks=1)  # offset 1, on worker 1 only
    await cluster.kill(1)
    await cluster.until(lambda: cluster.state("t", 2).leader == 2)
    cluster.world.internet.heal_all()
    await cluster.until(lambda: cluster.replica(2, "t").is_leader)
    client = await cluster.connect(2)
    await client.produce("t", batch_of(*[b"other"] * size))
    assert (await delete_records(client, "t", 2)).error_code == E.NONE
    await cluster.restart(1)
    await cluster.until(lambda: set(cluster.state("t", 2).isr) == {1, 2})
    await client.produce("t", batch_of(b"more"))
    await cluster.kill(2)
    await cluster.until(lambda: cluster.replica(1, "t").is_leader)
    client = await cluster.connect(1)
    row = await client.produce("t", bytearray(second))
    assert (row.base_offset, row.log_start_offset) == (size + 2, 2)
    values = await client.values("t", 2)
    assert values == [*[b"other"] * (size - 1), b"more", b"1"]


@together(replica_lag_time_max_ms=2000)
async def test_what_catches_up_is_not_fetched_with_what_is_in_sync(cluster: Together) -> None:
    """Otherwise producers with acks=all would wait for the catch-up of a new replica."""
    await cluster.create("a", (1, 2, 3))
    await cluster.create("b", (1, 2, 3))
    client = await cluster.connect(1)
    await fill(client, "a", 1)
    machine = cluster.nodes[3].machine
    machine.faults.refusing = lambda path: errno.ENOSPC if "/a-0/" in path else 0
    await client.produce("a", batch_of(b"x"), acks=1)
    await cluster.until(lambda: cluster.state("a", 3).isr == (1, 2))
    assert cluster.state("b", 3).isr == (1, 2, 3)
    assert fetched_together(cluster, 3) == [{"a"}, {"b"}]
    await fill(client, "b", 1)
    machine.faults.refusing = None
    await cluster.until(lambda: cluster.state("a", 3).isr == (1, 2, 3))
    await cluster.until(lambda: fetched_together(cluster, 3) == [{"a", "b"}])


def fetched_together(cluster: Together, node: int) -> list[set[str]]:
    """Return the topics of each of the worker's fetchers."""
    fetchers = cluster.worker(node).fetchers
    return sorted(({each.topic for each in one.partitions()} for one in fetchers), key=sorted)


@together()
async def test_deleting_records_says_so_where_a_live_replica_does_not_follow_in_time(
    cluster: Together,
) -> None:
    await cluster.create("t", (1, 2, 3))
    client = await cluster.connect(1)
    await fill(client, "t", 10)
    cluster.world.internet.cut("node-3", "node-1")
    row = await delete_records(client, "t", 7, timeout_ms=1000)
    assert (row.error_code, row.low_watermark) == (E.REQUEST_TIMED_OUT, 0)
    cluster.world.internet.heal_all()
    row = await delete_records(client, "t", 7)
    assert (row.error_code, row.low_watermark) == (E.NONE, 7)


@together()
async def test_clients_are_told_of_what_is_committed(cluster: Together) -> None:
    await cluster.create("t", (1, 2, 3), min_insync_replicas=2)
    client = await cluster.connect(1)
    await fill(client, "t", 5)
    await cluster.kill(2)
    await cluster.kill(3)
    await cluster.until(lambda: cluster.replica(1, "t").leader_state is not None)
    await fill(client, "t", 3, acks=1)
    assert (await latest(client, "t")).offset == 5


@together(replica_high_watermark_checkpoint_interval_ms=100)
async def test_high_watermarks_survive_a_kill(cluster: Together) -> None:
    await cluster.create("t", (1, 2, 3))
    client = await cluster.connect(1)
    await fill(client, "t", 5)
    await cluster.until(lambda: cluster.replica(3, "t").high_watermark == 5)
    await cluster.world.sleep(0.2)
    await cluster.kill(3)
    await cluster.restart(3)
    known = cluster.worker(3).replica_manager.log_dirs.online[0].checkpoints.high_watermarks
    assert known == {("t", 0): 5}


# A log directory fails

TWO_DISKS = {"log_dirs": ("/data", "/disk-1")}


async def on_the_second_disk(cluster: Together) -> RawClient:
    """Return a client of worker 1, the leader of `t`; all replicas of `t` are on /disk-1."""
    await cluster.create("filler", (1, 2, 3))
    await cluster.create("t", (1, 2, 3))
    for node in (1, 2, 3):
        assert cluster.replica(node, "t").log.folder == "/disk-1/t-0"
    client = await cluster.connect(1)
    await fill(client, "t", 5)
    return client


def break_disk(cluster: Together, node: int) -> None:
    machine = cluster.nodes[node].machine
    machine.faults.refusing = lambda path: errno.EIO if "/disk-1" in path else 0


def mend_disk(cluster: Together, node: int) -> None:
    cluster.nodes[node].machine.faults.refusing = None


@together(node_options=lambda _: TWO_DISKS)
async def test_another_leads_when_the_leader_loses_its_log_directory(cluster: Together) -> None:
    client = await on_the_second_disk(cluster)
    break_disk(cluster, 1)
    await client.produce("t", batch_of(b"x"), error=E.KAFKA_STORAGE_ERROR)
    await cluster.until(lambda: cluster.state("t", 2).isr == (2, 3), 2.0)
    assert cluster.state("t", 2).leader == 2
    for node in (1, 2, 3):
        await cluster.until(lambda at=node: cluster.state("t", at).offline == (1,))  # type: ignore[misc]
        row = await cluster.described(node, "t")
        assert (row.leader_id, row.offline_replicas) == (2, [1])
    other = await cluster.connect(2)
    await fill(other, "t", 5)
    assert cluster.state("filler", 2).isr == (1, 2, 3), "its other directory lives"
    mend_disk(cluster, 1)
    await cluster.restart(1)
    await cluster.until(lambda: set(cluster.state("t", 2).isr) == {1, 2, 3})
    assert cluster.state("t", 2).offline == ()
    assert cluster.replica(1, "t").log.log_end_offset == 10


@together(node_options=lambda _: TWO_DISKS)
async def test_a_follower_that_loses_its_log_directory_leaves_the_isr(cluster: Together) -> None:
    client = await on_the_second_disk(cluster)
    break_disk(cluster, 3)
    await client.produce("t", batch_of(b"x"))  # waits until 3 left the ISR
    assert cluster.state("t", 1).isr == (1, 2)
    await fill(client, "t", 5)
    assert cluster.state("t", 1).isr == (1, 2), "it does not come back by what it had"
    assert cluster.state("t", 1).offline == (3,)
    mend_disk(cluster, 3)
    await cluster.restart(3)
    await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2, 3))


@together(node_options=lambda _: TWO_DISKS)
async def test_the_last_in_sync_leads_again_when_its_log_directory_is_back(
    cluster: Together,
) -> None:
    client = await on_the_second_disk(cluster)
    await cluster.kill(2)
    await cluster.kill(3)
    await cluster.restart(2)  # for the quorum
    await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2))
    break_disk(cluster, 2)
    await client.produce("t", batch_of(b"x"))
    await cluster.until(lambda: cluster.state("t", 1).isr == (1,))
    break_disk(cluster, 1)
    await client.produce("t", batch_of(b"y"), acks=1, error=E.KAFKA_STORAGE_ERROR)
    await cluster.until(lambda: cluster.state("t", 1).leader == -1)
    assert (cluster.state("t", 1).isr, cluster.state("t", 1).elr) == ((), (1,))
    mend_disk(cluster, 2)
    await cluster.restart(2)
    assert cluster.state("t", 2).leader == -1, "2 has not all that was acknowledged"
    mend_disk(cluster, 1)
    await cluster.restart(1)
    await cluster.until(lambda: cluster.state("t", 2).leader == 1)
    await cluster.until(lambda: cluster.replica(2, "t").log.log_end_offset == 6)


def test_a_full_disk_of_a_follower_takes_nothing_offline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Together) -> None:
        await cluster.create("t", (1, 2, 3))
        client = await cluster.connect(1)
        await fill(client, "t", 5)
        machine = cluster.nodes[3].machine
        machine.faults.refusing = lambda path: errno.ENOSPC if "/t-0/" in path else 0
        await client.produce("t", batch_of(b"x"), acks=1)
        await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2))
        assert cluster.state("t", 1).offline == ()
        machine.faults.refusing = None
        await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2, 3))
        assert cluster.replica(3, "t").log.log_end_offset == 6

    caplog.set_level("INFO")
    run_together(scenario, replica_lag_time_max_ms=2000)
    assert "No space left on device" in caplog.text
    assert "cannot fetch partition t-0" not in caplog.text, "the leader has not failed"


@together()
async def test_a_leader_that_is_elected_while_its_disk_is_full_leads(cluster: Together) -> None:
    """Consumers and followers read from it at once, and producers write once there is room."""
    await cluster.create("t", (1, 2, 3), min_insync_replicas=2)
    client = await cluster.connect(1)
    await fill(client, "t", 5)
    machine = cluster.nodes[2].machine
    machine.faults.refusing = lambda path: errno.ENOSPC if "/t-0/" in path else 0
    await cluster.kill(1)
    await cluster.until(lambda: cluster.state("t", 2).leader == 2)
    await cluster.until(lambda: cluster.replica(2, "t").high_watermark == 5)
    other = await cluster.connect(2)
    assert await other.values("t") == [b"%d" % number for number in range(5)]
    await other.produce("t", batch_of(b"refused"), acks=1, error=E.KAFKA_STORAGE_ERROR)
    assert cluster.state("t", 2).offline == ()
    machine.faults.refusing = None
    await other.produce("t", batch_of(b"5"), acks=-1)
    assert cluster.replica(3, "t").log.log_end_offset == 6
    await cluster.restart(1)
    await cluster.until(lambda: sorted(cluster.state("t", 2).isr) == [1, 2, 3])
    await other.produce("t", batch_of(b"6"), acks=-1)
    assert cluster.replica(1, "t").log.log_end_offset == 7


@together()
async def test_a_leader_hears_of_followers_that_have_asked_before_it_knew_the_topic(
    cluster: Together,
) -> None:
    active = next(
        number
        for number in (1, 2, 3)
        if cluster.nodes[number].node.controller_role.quorum.leadership.is_active
    )
    late, third = (number for number in (1, 2, 3) if number != active)
    await cluster.create("known", (late, active, third))  # fetch sessions exist before
    cluster.world.internet.link(f"node-{active}", f"node-{late}").delay_s = 0.3
    await cluster.create("t", (late, active, third))
    await cluster.until(lambda: cluster.replica(late, "t").leader_state is not None)
    leadership = cluster.replica(late, "t").leader_state
    assert leadership is not None
    await cluster.until(lambda: all(f.log_end_offset == 0 for f in leadership.followers))
