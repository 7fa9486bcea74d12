"""InitProducerId: a unique producer id for each idempotent or transactional producer."""

from typing import Final, Protocol

from metaquorum.dataplane.coordinators.transaction.transaction import NO_EPOCH, NO_PRODUCER_ID
from metaquorum.dataplane.coordinators.transaction.transaction_coordinator import (
    TransactionCoordinator,
)
from metaquorum.dataplane.coordinators.transaction.transaction_shard import Expected
from metaquorum.dataplane.worker.context import Request
from metaquorum.dataplane.worker.producer_ids import ProducerIds
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

_FENCED_SINCE: Final = 4  # earlier versions know INVALID_PRODUCER_EPOCH instead (KIP-588)


class GivesProducerIds(Protocol):
    """Capability to take a producer id from this worker's block."""

    @property
    def producer_ids(self) -> ProducerIds: ...

    @property
    def transactions(self) -> TransactionCoordinator: ...


async def handle_init_producer_id(
    worker: GivesProducerIds, request: Request, message: InitProducerIdRequest
) -> InitProducerIdResponse:
    if message.transactional_id is not None:
        return await _init_transactional(worker, request, message, message.transactional_id)
    try:
        producer_id = await worker.producer_ids.take()
    except KafkaError as error:
        code = error.code
        if error.retriable:  # the only error that all clients retry
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
    # A producer without a transactional id never gets its former id again (KIP-360).
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _init_transactional(
    worker: GivesProducerIds,
    request: Request,
    message: InitProducerIdRequest,
    transactional_id: str,
) -> InitProducerIdResponse:
    expected = Expected(message.producer_id, message.producer_epoch)
    has_id, has_epoch = expected.producer_id != NO_PRODUCER_ID, expected.producer_epoch != NO_EPOCH
    if has_id is not has_epoch:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=NO_EPOCH)
    outcome = await worker.transactions.init_producer_id(
        transactional_id,
        message.transaction_timeout_ms,
        expected if has_id else None,
        request.client.account,
    )
    code = outcome.code
    if code is ErrorCode.PRODUCER_FENCED and request.version < _FENCED_SINCE:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(
        error_code=code, producer_id=outcome.producer_id, producer_epoch=outcome.producer_epoch
    )
