"""Producer ids for idempotent producers, from blocks that the controller allocates."""

from typing import Final

import trio

from metaquorum.quorum.rpc.controller_client import ControllerClient
from metaquorum.quorum.rpc.methods import ALLOCATE_PRODUCER_IDS, AllocateProducerIds
from metaquorum.quorum.rpc.session import WorkerSession

BLOCK_S: Final = 10.0  # seconds to wait for the next block; after that the client retries


class ProducerIds:
    """Allocator of producer ids from this worker's block; requests a new block when it is empty."""

    def __init__(self, controller_client: ControllerClient, session: WorkerSession) -> None:
        self._controller_client = controller_client
        self._session = session
        self._next = 0
        self._end = 0
        self._asking = trio.Lock()

    async def take(self) -> int:
        """Return a producer id never used before.

        Raises KafkaError if the controller does not allocate a block.
        """
        async with self._asking:
            if self._next == self._end:
                request = AllocateProducerIds(
                    self._session.registration.worker_id, self._session.broker_epoch
                )
                committed = await self._controller_client.ask(
                    ALLOCATE_PRODUCER_IDS, request, timeout_s=BLOCK_S
                )
                block = committed.answer
                self._next, self._end = block.first, block.first + block.count
            self._next += 1
            return self._next - 1
