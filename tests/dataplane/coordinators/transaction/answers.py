"""Answers of a coordinator of transactions."""

from metaquorum.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from metaquorum.wire.primitives.errors import ErrorCode


def added(
    request: AddPartitionsToTxnRequest, code: ErrorCode = ErrorCode.NONE
) -> AddPartitionsToTxnResponse:
    """Answer all partitions of the request with `code`."""
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=one.transactional_id,
                topic_results=[
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=[
                            AddPartitionsToTxnPartitionResult(
                                partition_index=index, partition_error_code=code
                            )
                            for index in topic.partitions
                        ],
                    )
                    for topic in one.topics
                ],
            )
            for one in request.transactions
        ]
    )
