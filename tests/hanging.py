"""A hanging transaction: records of a transaction that no coordinator knows.

Leaders refuse such records (KIP-890) unless transaction.partition.verification.enable is false.
"""

import time
from typing import NamedTuple

from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.socket_transport import wait
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from metaquorum.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from metaquorum.wire.records.records import Record, encode_batch

UNVERIFIED = {"transaction.partition.verification.enable": "false"}
_BY_NAME_UNTIL = 11  # later versions of Produce add the partition to the transaction


class Hanging(NamedTuple):
    producer_id: int
    offset: int


def hang(cluster: Cluster, where: TopicPartition) -> Hanging:
    """Append a record of a new producer's transaction, which has no coordinator."""
    asked = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
    given: InitProducerIdResponse = wait(cluster.call(asked, to=1))
    assert not given.error_code, given
    record = Record(0, time.time_ns() // 1_000_000, None, b"hanging", ())
    data = encode_batch(
        [record],
        producer_id=given.producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    request = ProduceRequest(
        transactional_id="ghost",
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                name=where.topic,
                partition_data=[PartitionProduceData(index=where.partition, records=data)],
            )
        ],
    )
    leader = wait(cluster.partition(where)).leader_id
    response: ProduceResponse = wait(cluster.call(request, to=leader, max_version=_BY_NAME_UNTIL))
    (partition,) = response.responses[0].partition_responses
    assert not partition.error_code, partition
    return Hanging(given.producer_id, partition.base_offset)
