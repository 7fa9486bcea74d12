"""Transactional producer and administration of transactions, without an event loop."""

from collections.abc import Iterator
from contextlib import contextmanager

from metaquorum.client.socket_transport import Blocking, blocking
from metaquorum.client.transactions.transactional_producer import TransactionalProducer


class BlockingTransactionalProducer(Blocking[TransactionalProducer]):
    """`TransactionalProducer` with blocking methods.

    BlockingTransactionalProducer(TransactionalProducer(cluster, "billing-1"))
    """

    init = blocking(TransactionalProducer.init)
    begin = blocking(TransactionalProducer.begin)
    send = blocking(TransactionalProducer.send)
    send_offsets = blocking(TransactionalProducer.send_offsets)
    commit = blocking(TransactionalProducer.commit)
    abort = blocking(TransactionalProducer.abort)
    abort_after = blocking(TransactionalProducer.abort_after)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin a transaction, commit it at the end of the block, and abort it after an exception.

        After KeyboardInterrupt nothing is sent: the timeout or the next `init` aborts it.
        """
        self.begin()
        try:
            yield
            self.commit()
        except Exception as error:
            self.abort_after(error)
            raise
