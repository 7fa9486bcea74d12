"""Verification of transactions in one log: no batch joins one that its coordinator does not know.

The first transactional batch of a producer without an open transaction in the log is appended only
after the coordinator has confirmed that the partition is part of the transaction (KIP-890). A
marker may arrive between that answer and the append: it would then end a transaction that the batch
joins too late, and nothing would ever end the batch's transaction again. So a verification is begun
in the log before the coordinator is asked, and every transactional batch or marker of the producer
ends it:

    begin --answer--> append of the first batch     the transaction is open, no more verification
       '--marker, or another first batch--> ended   an append that relies on it is refused

A client that changes to an epoch per transaction still has the epoch of its last transaction then.
Its first batch is verified even if that transaction is open in the log: the coordinator answers
once the marker is written.

Truncation and recovery end all verifications, as they build a new table.
"""

from typing import Final

from wire.primitives.errors import ErrorCode, KafkaError
from wire.records.batches import BatchHeader

# Producers being verified in one log at a time.
MAX_VERIFICATIONS: Final = 10_000
# A verification that no request has needed during this time may be forgotten.
FORGOTTEN_AFTER_MS: Final = 120_000
_SEQUENCES: Final = 1 << 31


class Verification:
    """A verification in progress, or one whose append has not come yet. Compared by identity."""

    __slots__ = ("epoch", "has_own_epoch", "lowest_sequence", "noted_ms")

    def __init__(self, epoch: int, lowest_sequence: int, noted_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = lowest_sequence  # sequence of the first batch to append
        self.noted_ms = noted_ms
        self.has_own_epoch = False  # the transaction, so its sequences begin at 0


# For appends that need no verification, because it is disabled.
NOT_REQUIRED: Final = Verification(-1, 0, 0)


class Verifications:
    """Verifications of one log, by producer id. Plain state."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: dict[int, Verification] = {}

    def begin(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        now_ms: int,
        *,
        has_own_epoch: bool = False,
    ) -> Verification:
        """Return the producer's verification, which begins now if there is none.

        A newer epoch begins another one. `has_own_epoch`: the client gives each transaction an
        epoch of its own. Raises KafkaError (NOT_ENOUGH_REPLICAS, which every client
        retries) if there are too many.
        """
        pending = self.pending
        known = pending.get(producer_id)
        if known is not None and epoch <= known.epoch:
            known.noted_ms = now_ms
            pending[producer_id] = pending.pop(producer_id)  # in the order of their times
            if epoch == known.epoch and _is_before(sequence, known.lowest_sequence):
                known.lowest_sequence = sequence
            known.has_own_epoch = known.has_own_epoch or has_own_epoch
            return known
        if known is None and len(pending) >= MAX_VERIFICATIONS:
            self._forget(now_ms)
        pending.pop(producer_id, None)
        begun = pending[producer_id] = Verification(epoch, sequence, now_ms)
        begun.has_own_epoch = has_own_epoch
        return begun

    def _forget(self, now_ms: int) -> None:
        pending = self.pending
        oldest = next(iter(pending))
        if now_ms - pending[oldest].noted_ms < FORGOTTEN_AFTER_MS:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"transactions of {len(pending)} producers are being verified in this partition",
            )
        del pending[oldest]

    def is_pending(self, producer_id: int, verification: Verification) -> bool:
        """Return whether the verification has not ended."""
        return self.pending.get(producer_id) is verification

    def end(self, producer_id: int) -> Verification | None:
        """End and return the verification: a transactional batch or a marker was appended."""
        return self.pending.pop(producer_id, None)

    def check(self, header: BatchHeader, verification: Verification | None) -> None:
        """Check that the first batch of a transaction may be appended.

        Raises KafkaError: INVALID_TXN_STATE unless `verification` is the one in progress,
        OUT_OF_ORDER_SEQUENCE_NUMBER if an earlier batch asked for it, too, and was not appended.
        """
        if verification is NOT_REQUIRED:
            return
        known = self.pending.get(header.producer_id)
        if known is None or known is not verification:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"the batch of producer {header.producer_id} is not part of an ongoing transaction",
            )
        if (
            header.base_sequence != known.lowest_sequence
            and header.producer_epoch == known.epoch
            and _is_before(known.lowest_sequence, header.base_sequence)
        ):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, its "
                f"transaction begins with {known.lowest_sequence}",
            )


def _is_before(sequence: int, other: int) -> bool:
    """Return whether `sequence` is before `other`; 0 follows 2^31 - 1."""
    return 0 < (other - sequence) % _SEQUENCES < _SEQUENCES // 2
