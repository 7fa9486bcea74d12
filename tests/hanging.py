"""A hanging transaction: records of a transaction that no coordinator knows.

Leaders refuse such records (KIP-890) unless transaction.partition.verification.enable is false.
"""

import time

from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.socket_transport import wait
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records.records import Record, encode_batch

UNVERIFIED = {"transaction.partition.verification.enable": "false"}
_BY_NAME_UNTIL = 11  # later versions of Produce add the partition to the transaction


def hang(cluster: Cluster, where: TopicPartition, producer_id: int = 777_000) -> int:
    """Append a record of a transaction without coordinator; return its offset."""
    record = Record(0, time.time_ns() // 1_000_000, None, b"hanging", ())
    data = encode_batch(
        [record], producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
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
    return partition.base_offset
