"""States of producers' transactions, from all coordinators of the cluster."""

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from metaquorum.dataplane.worker.transaction_verifier import AsksWorkers
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.internal_topics import TRANSACTION_STATE
from metaquorum.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

ANSWER_S: Final = 5.0
# States in which a transaction has no marker to come. All others are open or prepared.
_ENDED: Final = frozenset(("Empty", "CompleteCommit", "CompleteAbort", "Dead"))


class TransactionStates:
    """Asks all coordinators for the transactions of producers, by their ids."""

    def __init__(
        self,
        worker_id: int,
        client: AsksWorkers,
        image: Callable[[], MetadataImage],
        list_here: Callable[[ListTransactionsRequest], Awaitable[ListTransactionsResponse]],
    ) -> None:
        """Create it for one worker; `list_here` asks the coordinator of this worker."""
        self._worker_id = worker_id
        self._client = client
        self._image = image
        self._list_here = list_here

    async def open_producers(self, producer_ids: Collection[int]) -> set[int]:
        """Return those with a transaction that is ongoing or prepared.

        Raises KafkaError (COORDINATOR_NOT_AVAILABLE) unless every coordinator has answered.
        """
        request = ListTransactionsRequest(producer_id_filters=list(producer_ids))
        open_: set[int] = set()
        for worker_id in self._coordinators():
            try:
                if worker_id == self._worker_id:
                    response = await self._list_here(request)
                else:
                    response = await self._client.ask(worker_id, request, timeout_s=ANSWER_S)
            except KafkaError as error:
                raise _unknown(f"worker {worker_id}: {error.message}") from error
            if response.error_code:
                raise _unknown(f"worker {worker_id}: error code {response.error_code}")
            for state in response.transaction_states:
                if state.transaction_state not in _ENDED:
                    open_.add(state.producer_id)
        return open_

    def _coordinators(self) -> list[int]:
        topic = self._image().topic(TRANSACTION_STATE)
        if topic is None:  # no transaction has ever been begun
            return []
        leaders = {partition.leader for partition in topic.partitions}
        if any(leader < 0 for leader in leaders):
            raise _unknown(f"a partition of {TRANSACTION_STATE} has no leader")
        return sorted(leaders)


def _unknown(reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the state of transactions is unknown: {reason}"
    )
