"""Markers of transactions between workers: replicated before the answer, repeated without harm."""

from typing import Any

from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.records.records import parse_header
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import batch_of

PRODUCER = 7


def markers(topic: str, *, epoch: int = 0, version: int = 0) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=PRODUCER,
                producer_epoch=epoch,
                transaction_result=True,
                topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
                transaction_version=version,
            )
        ]
    )


async def code_of(client: Any, worker_id: int, request: WriteTxnMarkersRequest) -> int:
    answer = await client.ask(worker_id, request, timeout_s=20.0)
    return int(answer.markers[0].topics[0].partitions[0].error_code)


def begin(cluster: Together, leader: int, topic: str, epoch: int = 0, sequence: int = 0) -> None:
    partition = cluster.replica(leader, topic)
    batch = batch_of(
        b"x",
        producer_id=PRODUCER,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    partition.log.append(batch, parse_header(batch), partition.leader_epoch, 1)
    partition.appended(len(batch))


@together()
async def test_a_marker_is_answered_when_all_in_sync_replicas_have_it(cluster: Together) -> None:
    await cluster.create("t", (2, 3))
    client = cluster.worker(1).isr_manager.new_worker_client()
    begin(cluster, 2, "t")
    led = cluster.replica(2, "t")
    assert led.last_stable_offset == 0
    assert await code_of(client, 3, markers("t")) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await cluster.create("elsewhere", (3,))
    absent = markers("elsewhere")
    assert await code_of(client, 2, absent) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await code_of(client, 2, markers("t")) == ErrorCode.NONE
    assert led.high_watermark == led.last_stable_offset == 2
    assert cluster.replica(3, "t").log.log_end_offset == 2
    assert await code_of(client, 2, markers("t")) == ErrorCode.NONE  # the answer was lost
    client.close()


@together()
async def test_markers_of_partitions_that_others_lead_or_follow_are_not_written_at_once(
    cluster: Together,
) -> None:
    await cluster.create("t", (2, 3))
    await cluster.create("u", (2,))
    begin(cluster, 2, "t")
    marker = TransactionMarker(PRODUCER, 0, 0, True)
    writers = {number: cluster.worker(number).marker_writer for number in (1, 2, 3)}
    for number in (1, 2, 3):
        assert writers[number].write_now(marker, [("t", 0)]) is None
        assert writers[number].write_now(marker, [("u", 0), ("t", 0)]) is None
    assert cluster.replica(2, "u").log.log_end_offset == 0
    assert writers[2].write_now(marker, [("u", 0)]) == [ErrorCode.NONE]


@together()
async def test_an_epoch_per_transaction_refuses_a_late_marker(cluster: Together) -> None:
    await cluster.create("t", (2,))
    client = cluster.worker(1).isr_manager.new_worker_client()
    begin(cluster, 2, "t")
    assert await code_of(client, 2, markers("t", epoch=1, version=2)) == ErrorCode.NONE
    assert await code_of(client, 2, markers("t", epoch=1, version=2)) == ErrorCode.NONE
    begin(cluster, 2, "t", epoch=1)
    late = ErrorCode.INVALID_PRODUCER_EPOCH
    assert await code_of(client, 2, markers("t", epoch=1, version=2)) == late
    assert await code_of(client, 2, markers("t", epoch=2, version=2)) == ErrorCode.NONE
    client.close()


@together()
async def test_a_marker_needs_the_required_number_of_replicas(cluster: Together) -> None:
    await cluster.create("t", (2, 3), min_insync_replicas=2)
    client = cluster.worker(1).isr_manager.new_worker_client()
    begin(cluster, 2, "t")
    await cluster.kill(3)
    await cluster.until(lambda: cluster.replica(2, "t").isr == (2,), 60.0)
    end_offset = cluster.replica(2, "t").log.log_end_offset
    assert await code_of(client, 2, markers("t")) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster.replica(2, "t").log.log_end_offset == end_offset
    client.close()


@together()
async def test_internal_topics_of_other_coordinators_take_no_markers(cluster: Together) -> None:
    client = cluster.worker(1).isr_manager.new_worker_client()
    refused = await code_of(client, 2, markers("__transaction_state"))
    assert refused not in (ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR)
    client.close()
