"""DescribeWorkers (10001): registrations and state of all workers. An API of this project.

Kafka's keys are below 10,000, and its clients ignore unknown keys. Kafka's DescribeCluster and
DescribeQuorum return some of this; no API of Kafka returns why a worker is fenced.
"""

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


class DescribeWorkersRequest(Message, api=10001, versions="0-1", flexible="0+"):
    """Requests all workers."""


class WorkerListener(Struct):
    name: str = string()
    host: str = string()
    port: int = int32()
    security_protocol: str = string()


class DescribedWorker(Struct):
    """State of one worker. Values from heartbeats are -1 if the controller has received none."""

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
    is_draining: bool = boolean("1+", ignorable=True)


class DescribeWorkersResponse(Message, api=10001, versions="0-1", flexible="0+"):
    """All workers. With an error, `workers` comes from this node's metadata, not the controller."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    end_offset: int = int64(default=-1)
    workers: list[DescribedWorker] = array(DescribedWorker)
