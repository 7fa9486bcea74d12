"""DescribeReplicas (10003): state of the followers, as leaders know it. An API of this project."""

from __future__ import annotations

from metaquorum.wire.schema.message import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
)


class DescribeReplicasTopic(Struct):
    name: str = string()
    partitions: list[int] = array(int32)


class DescribeReplicasRequest(Message, api=10003, versions="0", flexible="0+"):
    """Requests the followers of partitions that the worker leads."""

    topics: list[DescribeReplicasTopic] = array(DescribeReplicasTopic)


class DescribedFollower(Struct):
    """State of a follower according to its fetches from this leader; -1: not known."""

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
