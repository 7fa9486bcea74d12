"""InitProducerId: an id of its own for each idempotent producer."""

from typing import Protocol

from dataplane.worker.context import Request
from dataplane.worker.producer_ids import ProducerIds
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.primitives.errors import ErrorCode, KafkaError


class GivesProducerIds(Protocol):
    """May take a producer id out of this worker's block."""

    @property
    def producer_ids(self) -> ProducerIds: ...


async def handle_init_producer_id(
    worker: GivesProducerIds, request: Request, message: InitProducerIdRequest
) -> InitProducerIdResponse:
    if message.transactional_id is not None:
        # Without a coordinator there are no transactions, nor will there be any if asked again.
        code = (
            ErrorCode.UNSUPPORTED_VERSION if message.transactional_id else ErrorCode.INVALID_REQUEST
        )
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
    try:
        producer_id = await worker.producer_ids.take()
    except KafkaError as error:
        code = error.code
        if error.retriable:  # the one error upon which all clients ask again
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
    # Without a transactional id a producer never gets its old id again (KIP-360).
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
