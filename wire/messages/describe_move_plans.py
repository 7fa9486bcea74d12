"""DescribeMovePlans (10012): the plans of moves, and what moves now. An API of this project."""

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


class DescribeMovePlansRequest(Message, api=10012, versions="0", flexible="0+"):
    """Requests these plans (null: all that are known), each with its moves if that is asked for."""

    plan_ids: list[int] | None = array(int32, nullable="0+", default=None)
    include_moving: bool = boolean()


class MovingPartition(Struct):
    """A partition that moves as part of the plan. `replicas`: those of the target, in order."""

    topic: str = string()
    partition_index: int = int32()
    replicas: list[int] = array(int32)
    adding: list[int] = array(int32)
    removing: list[int] = array(int32)
    isr: list[int] = array(int32)
    leader_id: int = int32()
    size_bytes: int = int64()


class StoppedMove(Struct):
    """A move that was cancelled or given up. `topic` is empty if it was deleted before its turn."""

    topic: str = string()
    partition_index: int = int32()
    reason: str = string()


class DescribedMovePlan(Struct):
    """State of one plan.

    `begun`: moves that have begun or were given up; `done` and `stopped` of them have ended at
    their target, or otherwise. `begun_bytes`, `moving_bytes`: estimated bytes of those that have
    begun, and of those that move now; -1 for a plan that has ended, which has forgotten its moves.
    `stops`: the last moves that have ended otherwise, except by a cancel of the plan.
    """

    plan_id: int = int32()
    owner: str = string()
    client_id: str = string()
    state: str = string()
    rate_bytes_per_s: int = int64(default=-1)
    batch_size: int = int32()
    moves: int = int32()
    size_bytes: int = int64()
    estimate_s: int = int64(default=-1)
    created_ms: int = int64()
    ended_ms: int = int64()
    begun: int = int32()
    done: int = int32()
    stopped: int = int32()
    moving_count: int = int32()
    begun_bytes: int = int64(default=-1)
    moving_bytes: int = int64(default=-1)
    moving: list[MovingPartition] = array(MovingPartition)
    stops: list[StoppedMove] = array(StoppedMove)


class DescribeMovePlansResponse(Message, api=10012, versions="0", flexible="0+"):
    """`now_ms`: the time at this worker, by which the age of a plan is known."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    now_ms: int = int64()
    plans: list[DescribedMovePlan] = array(DescribedMovePlan)
