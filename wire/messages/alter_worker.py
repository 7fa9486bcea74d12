"""AlterWorker (10008): drains, returns or removes a worker. An API of this project.

Kafka's UnregisterBroker removes a worker with its replicas, and a cordon (KIP-1066) is a config of
the broker.
"""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, int8, int16, int32, string


class AlterWorkerRequest(Message, api=10008, versions="0", flexible="0+"):
    """`action`: 1 drains the worker, 2 ends that, 3 unregisters it if it has no replica."""

    worker_id: int = int32()
    action: int = int8()


class AlterWorkerResponse(Message, api=10008, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
