"""DescribeWorkers (10001): the workers as the cluster sees them. An API of our own.

Kafka's keys are below 10,000, and its clients pass over keys they do not know. DescribeCluster and
DescribeQuorum tell some of this for any Kafka; why a worker is fenced, nobody else tells.
"""

from __future__ import annotations

from wire.schema.message import Message, Struct, array, boolean, int16, int32, int64, string


class DescribeWorkersRequest(Message, api=10001, versions="0", flexible="0+"):
    """Asks for all workers."""


class WorkerListener(Struct):
    name: str = string()
    host: str = string()
    port: int = int32()
    security_protocol: str = string()


class DescribedWorker(Struct):
    """Of a worker that the active controller has not heard of, what it knows is -1."""

    worker_id: int = int32()
    broker_epoch: int = int64()
    host: str = string()
    rack: str | None = string(nullable="0+", default=None)
    listeners: list[WorkerListener] = array(WorkerListener)
    is_fenced: bool = boolean()
    why_fenced: str = string()
    is_shutting_down: bool = boolean()
    applied_offset: int = int64(default=-1)
    heard_ms_ago: int = int64(default=-1)


class DescribeWorkersResponse(Message, api=10001, versions="0", flexible="0+"):
    """With an error, `workers` is what this node's metadata says, and no controller was asked."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    end_offset: int = int64(default=-1)
    workers: list[DescribedWorker] = array(DescribedWorker)
