"""StartMovePlan (10010): gives the cluster a plan of moves to carry out. An API of this project.

Kafka's AlterPartitionReassignments begins all its moves at once, and its throttles are configs that
an operator has to remove. A plan moves a few partitions at a time, and its throttle ends with it.
"""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, Struct, array, int16, int32, int64, string


class PlannedPartition(Struct):
    """`size_bytes`: what the move copies, as estimated."""

    partition_index: int = int32()
    replicas: list[int] = array(int32)
    size_bytes: int = int64()


class PlannedTopic(Struct):
    name: str = string()
    partitions: list[PlannedPartition] = array(PlannedPartition)


class StartMovePlanRequest(Message, api=10010, versions="0", flexible="0+"):
    """The moves begin in the order of the request, `batch_size` of them at the same time.

    `rate_bytes_per_s`: limit for each worker that sends or receives replicas of the plan; -1 for
    none. `estimate_s`: how long the plan takes, as estimated; -1 if that is not known.
    """

    timeout_ms: int = int32(default=60000)
    rate_bytes_per_s: int = int64(default=-1)
    batch_size: int = int32(default=100)
    estimate_s: int = int64(default=-1)
    topics: list[PlannedTopic] = array(PlannedTopic)


class StartMovePlanResponse(Message, api=10010, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    plan_id: int = int32(default=-1)
