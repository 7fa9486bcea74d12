"""DescribeQuorum (55): voters of the metadata log and their log end offsets. KIP-595, 836, 853."""

from __future__ import annotations

from metaquorum.wire.schema.message import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)


class DescribeQuorumPartition(Struct):
    partition_index: int = int32()


class DescribeQuorumTopic(Struct):
    topic_name: str = string()
    partitions: list[DescribeQuorumPartition] = array(DescribeQuorumPartition)


class DescribeQuorumRequest(Message, api=55, versions="0-2", flexible="0+"):
    topics: list[DescribeQuorumTopic] = array(DescribeQuorumTopic)


class ReplicaState(Struct):
    replica_id: int = int32()
    replica_directory_id: bytes = uuid("2+")
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64("1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = int64("1+", default=-1, ignorable=True)


class PartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string("2+", nullable="2+", default=None, ignorable=True)
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: list[ReplicaState] = array(ReplicaState)
    observers: list[ReplicaState] = array(ReplicaState)


class TopicData(Struct):
    topic_name: str = string()
    partitions: list[PartitionData] = array(PartitionData)


class Listener(Struct):
    name: str = string("2+")
    host: str = string("2+")
    port: int = uint16("2+")


class Node(Struct):
    node_id: int = int32("2+")
    listeners: list[Listener] = array(Listener, "2+")


class DescribeQuorumResponse(Message, api=55, versions="0-2", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string("2+", nullable="2+", default=None, ignorable=True)
    topics: list[TopicData] = array(TopicData)
    nodes: list[Node] = array(Node, "2+", ignorable=True)
