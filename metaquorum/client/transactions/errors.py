"""Errors of a transactional producer, by the next step of the program:

AbortableTransactionError  abort the transaction, then begin another one
FatalTransactionError      close the producer; another producer with the same id may begin
  ProducerFencedError      another producer has the id, or the transaction has timed out
UnknownOutcomeError        the transaction was committed or aborted: `commit` again returns or
                           raises, or the committed offsets show it after the next `init`
"""

from metaquorum.client.errors import AdminError, BrokerError
from metaquorum.wire.primitives.errors import ErrorCode


class AbortableTransactionError(BrokerError):
    """Raised if a step of a transaction failed: the transaction can only be aborted."""


class FatalTransactionError(BrokerError):
    """Raised if a producer can no longer be used: close it."""


class ProducerFencedError(FatalTransactionError):
    """Raised if a newer producer has the transactional id, or the coordinator ended a transaction.

    The coordinator aborts a transaction that takes longer than its timeout, and refuses the
    producer from then on.
    """


class UnknownOutcomeError(AdminError):
    """Raised if the answer to the end of a transaction was lost, and retries found no other.

    The coordinator may have decided. `commit` (or `abort`) of the same producer may be repeated
    unless `is_final`. `cause`: the last error.
    """

    def __init__(self, transactional_id: str, action: str, cause: Exception, *, is_final: bool):
        self.cause, self.is_final = cause, is_final
        what = "committed" if action == "commit" else "aborted"
        text = f"transactional id {transactional_id}: it is not known whether the transaction was "
        super().__init__(
            f"{text}{what}: {cause}"
            + ("" if is_final else f"; `{action}` may be repeated, which gives the outcome")
        )


_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


def fatal(error: BrokerError) -> FatalTransactionError:
    """Return the fatal error for the answer of a broker."""
    if error.code in _FENCED:
        text = "another producer has the transactional id, or the transaction has timed out"
        return ProducerFencedError(error.code, text, error.subject)
    text = error.message
    if error.code is ErrorCode.INVALID_TXN_STATE:
        text = "its coordinator has ended the transaction: it has timed out, or was aborted"
    return FatalTransactionError(error.code, text, error.subject)


def abortable(error: BrokerError) -> AbortableTransactionError:
    """Return the error after which the transaction can only be aborted."""
    return AbortableTransactionError(error.code, error.message, error.subject)
