"""Transactional producer and administration of transactions, without an event loop."""

from collections.abc import Iterator
from contextlib import contextmanager

from metaquorum.client.cluster import Cluster
from metaquorum.client.socket_transport import Blocking, blocking
from metaquorum.client.transactions.admin import TransactionAdmin
from metaquorum.client.transactions.transactional_producer import TransactionalProducer


class BlockingTransactionAdmin(Blocking[TransactionAdmin]):
    """`TransactionAdmin` with blocking methods."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(TransactionAdmin(cluster))

    list_transactions = blocking(TransactionAdmin.list_transactions)
    describe_transactions = blocking(TransactionAdmin.describe_transactions)
    describe_producers = blocking(TransactionAdmin.describe_producers)
    coordinated = blocking(TransactionAdmin.coordinated)
    find_hanging = blocking(TransactionAdmin.find_hanging)
    abort_in_partition = blocking(TransactionAdmin.abort_in_partition)
    fence_producer = blocking(TransactionAdmin.fence_producer)
    remove_ids = blocking(TransactionAdmin.remove_ids)
    gather_stalls = blocking(TransactionAdmin.gather_stalls)


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
