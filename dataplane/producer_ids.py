"""Producer ids for idempotent producers, out of blocks that the controller gives."""

import trio

from metaquorum.gateway import Gateway


class ProducerIds:
    """Hands out the ids of this worker's block, and asks for the next block when it is used up."""

    def __init__(self, gateway: Gateway, worker_id: int, broker_epoch: int) -> None:
        self._gateway = gateway
        self._worker_id = worker_id
        self._broker_epoch = broker_epoch
        self._next = 0
        self._end = 0
        self._asking = trio.Lock()

    async def take(self) -> int:
        """An id that nobody has had before. KafkaError when the controller gives none."""
        async with self._asking:
            if self._next == self._end:
                block = await self._gateway.allocate_producer_ids(
                    self._worker_id, self._broker_epoch
                )
                self._next, self._end = block.first, block.first + block.count
            self._next += 1
            return self._next - 1
