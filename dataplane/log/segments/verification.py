"""Verification of transactions in one log: no batch joins one that its coordinator does not know.

The first transactional batch of a producer without an open transaction in the log is appended only
after the coordinator has confirmed that the partition is part of the transaction (KIP-890). A
marker may arrive between that answer and the append: it would then end a transaction that the batch
joins too late, and nothing would ever end the batch's transaction again. So a verification is begun
in the log before the coordinator is asked, and every transactional batch or marker of the producer
ends it:

    begin --answer--> append of the first batch     the transaction is open, no more verification
       |--marker, or another first batch--> ended   an append that relies on it is refused
       '--the request is over--> cancelled          refused, failed, or its connection has closed

Each request has a verification of its own. Every client can send a request with any producer id and
epoch, and the coordinator refuses what is forged: that request takes nothing with it that another
one relies on, and leaves nothing behind. The requests in progress are the bound of the table.

A client that changes to an epoch per transaction still has the epoch of its last transaction then.
Its first batch is verified even if that transaction is open in the log: the coordinator answers
once the marker is written.

Truncation and recovery end all verifications, as they build a new table.
"""

from typing import Final

from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.batches import BatchHeader


class Verification:
    """The verification of one producer for one request. Compared by identity."""

    __slots__ = ("has_own_epoch", "is_used")

    def __init__(self, *, has_own_epoch: bool = False) -> None:
        self.has_own_epoch = has_own_epoch  # the transaction, so its sequences begin at 0
        self.is_used = False  # an append relies on it


# For appends that need no verification: it is disabled, or the coordinator has confirmed the
# partition in the step that appends.
NOT_REQUIRED: Final = Verification()


class Verifications:
    """Verifications of one log that have not ended, by producer id. Plain state."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: dict[int, dict[Verification, None]] = {}

    def begin(self, producer_id: int, *, has_own_epoch: bool = False) -> Verification:
        """Return a new verification, which the caller must `cancel` when its request is over.

        `has_own_epoch`: the client gives each transaction an epoch of its own.
        """
        begun = Verification(has_own_epoch=has_own_epoch)
        self.pending.setdefault(producer_id, {})[begun] = None
        return begun

    def cancel(self, producer_id: int, verification: Verification) -> None:
        """End this verification alone; it may have ended before."""
        of_producer = self.pending.get(producer_id)
        if of_producer is not None:
            of_producer.pop(verification, None)
            if not of_producer:
                del self.pending[producer_id]

    def is_pending(self, producer_id: int, verification: Verification) -> bool:
        """Return whether the verification has not ended."""
        return verification in self.pending.get(producer_id, ())

    def end(self, producer_id: int) -> bool:
        """End all verifications of the producer: a batch of a transaction or a marker was appended.

        Return whether the batch relied on one whose transaction has an epoch of its own.
        """
        ended = self.pending.pop(producer_id, ())
        return any(one.is_used and one.has_own_epoch for one in ended)

    def check(self, header: BatchHeader, verification: Verification | None) -> None:
        """Check that the first batch of a transaction may be appended, and rely on `verification`.

        Raises KafkaError (INVALID_TXN_STATE) if it has ended, or if there is none.
        """
        if verification is NOT_REQUIRED:
            return
        if verification is None or not self.is_pending(header.producer_id, verification):
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"the batch of producer {header.producer_id} is not part of an ongoing transaction",
            )
        verification.is_used = True
