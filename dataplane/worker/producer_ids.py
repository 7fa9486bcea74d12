"""Producer ids for idempotent producers, out of blocks that the controller gives."""

from typing import Final

import trio

from metaquorum.rpc.controller_client import ControllerClient
from metaquorum.rpc.methods import ALLOCATE_PRODUCER_IDS, AllocateProducerIds
from metaquorum.rpc.session import WorkerSession

BLOCK_S: Final = 10.0  # for the next block to come; who has to wait for longer asks again


class ProducerIds:
    """Hands out the ids of this worker's block, and asks for the next block when it is used up."""

    def __init__(self, controller_client: ControllerClient, session: WorkerSession) -> None:
        self._controller_client = controller_client
        self._session = session
        self._next = 0
        self._end = 0
        self._asking = trio.Lock()

    async def take(self) -> int:
        """An id that nobody has had before. KafkaError when the controller gives none."""
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
