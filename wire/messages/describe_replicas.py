"""DescribeReplicas (10003): what leaders know of their followers. An API of our own."""

from __future__ import annotations

from wire.schema.message import Message, Struct, array, boolean, int16, int32, int64, string


class DescribeReplicasTopic(Struct):
    name: str = string()
    partitions: list[int] = array(int32)


class DescribeReplicasRequest(Message, api=10003, versions="0", flexible="0+"):
    """Asks a worker of partitions that it leads."""

    topics: list[DescribeReplicasTopic] = array(DescribeReplicasTopic)


class DescribedFollower(Struct):
    """As its fetches have shown it to this leader; what it did not show is -1."""

    replica_id: int = int32()
    in_sync: bool = boolean()
    log_end_offset: int = int64(default=-1)
    fetched_ms_ago: int = int64(default=-1)
    caught_up_ms_ago: int = int64(default=-1)


class DescribedReplicas(Struct):
    partition: int = int32()
    error_code: int = int16()
    leader_epoch: int = int32(default=-1)
    high_watermark: int = int64(default=-1)
    log_end_offset: int = int64(default=-1)
    followers: list[DescribedFollower] = array(DescribedFollower)


class DescribeReplicasTopicResult(Struct):
    name: str = string()
    partitions: list[DescribedReplicas] = array(DescribedReplicas)


class DescribeReplicasResponse(Message, api=10003, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    topics: list[DescribeReplicasTopicResult] = array(DescribeReplicasTopicResult)
