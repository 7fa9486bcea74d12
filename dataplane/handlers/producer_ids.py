"""InitProducerId: a unique producer id for each idempotent producer."""

from typing import Protocol

from dataplane.worker.context import Request
from dataplane.worker.producer_ids import ProducerIds
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.primitives.errors import ErrorCode, KafkaError


class GivesProducerIds(Protocol):
    """Capability to take a producer id from this worker's block."""

    @property
    def producer_ids(self) -> ProducerIds: ...


async def handle_init_producer_id(
    worker: GivesProducerIds, request: Request, message: InitProducerIdRequest
) -> InitProducerIdResponse:
    if message.transactional_id is not None:
        # There is no transaction coordinator: the error is final.
        code = (
            ErrorCode.UNSUPPORTED_VERSION if message.transactional_id else ErrorCode.INVALID_REQUEST
        )
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
    try:
        producer_id = await worker.producer_ids.take()
    except KafkaError as error:
        code = error.code
        if error.retriable:  # the only error that all clients retry
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
    # A producer without a transactional id never gets its former id again (KIP-360).
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
