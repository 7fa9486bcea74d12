"""RemoveTransactionalIds (10014): removes ids without a transaction. An API of this project.

A coordinator removes them by itself after transactional.id.expiration.ms. A producer that still has
a removed id gets INVALID_PRODUCER_ID_MAPPING, and must initialize again.
"""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, Struct, array, int16, int32, string


class RemoveTransactionalIdsRequest(Message, api=10014, versions="0", flexible="0+"):
    """Sent to the coordinator of the ids."""

    transactional_ids: list[str] = array(string)


class RemovedTransactionalId(Struct):
    """The result for one id: CONCURRENT_TRANSACTIONS if it has an open transaction."""

    transactional_id: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class RemoveTransactionalIdsResponse(Message, api=10014, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    results: list[RemovedTransactionalId] = array(RemovedTransactionalId)
