"""The part of `capture_messages` about transactions: one transactional id for each version."""

import time
from typing import TYPE_CHECKING

from metaquorum.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from metaquorum.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from metaquorum.wire.messages.describe_transactions import DescribeTransactionsRequest
from metaquorum.wire.messages.end_txn import EndTxnRequest
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.messages.list_transactions import ListTransactionsRequest
from metaquorum.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from metaquorum.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import APIS, ApiKey

if TYPE_CHECKING:
    from tests.wire.messages.capture_messages import Peer

# From this version on, AddPartitionsToTxn is a request of brokers, for several transactions.
BATCHED = 4


def ask_transactions(peer: "Peer", topic: str) -> None:
    for version in range(APIS[ApiKey.ADD_PARTITIONS_TO_TXN].max_version + 1):
        _run_transaction(peer, topic, version)
    for version in range(APIS[ApiKey.LIST_TRANSACTIONS].max_version + 1):
        pattern = "golden-.*" if version >= 2 else None
        listed = ListTransactionsRequest(
            state_filters=["Ongoing", "Unknown"], transactional_id_pattern=pattern
        )
        peer.ask(ApiKey.LIST_TRANSACTIONS, version, listed)
        peer.ask(ApiKey.LIST_TRANSACTIONS, version, ListTransactionsRequest())
    for version in (1, 2):
        marker = WritableTxnMarker(
            producer_id=4000 + version,
            producer_epoch=0,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[0, 99])],
            coordinator_epoch=0,
        )
        peer.ask(ApiKey.WRITE_TXN_MARKERS, version, WriteTxnMarkersRequest(markers=[marker]))


def _run_transaction(peer: "Peer", topic: str, version: int) -> None:
    """Add partitions and offsets, and end the transaction, in this version or the last one."""

    def at(key: ApiKey) -> int:
        return min(version, APIS[key].max_version)

    name, group = f"golden-transaction-{version}", f"golden-{version}"
    init = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    while True:
        given = peer.ask(ApiKey.INIT_PRODUCER_ID, 5, init)
        if given.error_code == ErrorCode.NONE:
            break
        time.sleep(0.1)
    producer_id, epoch = given.producer_id, given.producer_epoch
    topics = [AddPartitionsToTxnTopic(name=topic, partitions=[0, 1])]
    if version < BATCHED:
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=topics,
        )
    else:
        add = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=name,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    verify_only=False,
                    topics=topics,
                )
            ]
        )
    peer.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, add)
    offsets = AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, group_id=group
    )
    peer.ask(ApiKey.ADD_OFFSETS_TO_TXN, at(ApiKey.ADD_OFFSETS_TO_TXN), offsets)
    commit = TxnOffsetCommitRequest(
        transactional_id=name,
        group_id=group,
        producer_id=producer_id,
        producer_epoch=epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=0,
                        committed_offset=7,
                        committed_metadata="note" if version else None,
                    )
                ],
            )
        ],
    )
    peer.ask(ApiKey.TXN_OFFSET_COMMIT, at(ApiKey.TXN_OFFSET_COMMIT), commit)
    names = DescribeTransactionsRequest(transactional_ids=[name, "golden-unknown"])
    peer.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, names)
    end = EndTxnRequest(
        transactional_id=name,
        producer_id=producer_id,
        producer_epoch=epoch,
        committed=version % 2 == 0,
    )
    peer.ask(ApiKey.END_TXN, at(ApiKey.END_TXN), end)
