"""Requests of transactions in a cluster whose metadata.version is too low for them."""

import pytest

from metaquorum.metadata.records import ELIGIBLE_LEADERS, METADATA_VERSION, FeatureRange
from metaquorum.quorum.controller import features
from metaquorum.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from metaquorum.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from metaquorum.wire.messages.describe_transactions import DescribeTransactionsRequest
from metaquorum.wire.messages.end_txn import EndTxnRequest
from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.messages.list_transactions import ListTransactionsRequest
from metaquorum.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.groups.clients import GroupClient, groups, versions
from tests.dataplane.serving import Simulated

TOO_LOW = ErrorCode.UNSUPPORTED_VERSION
COMMAND = "mq-admin cluster upgrade metadata.version=3"
TRANSACTION = 1
OF_LIBRDKAFKA = 2


@pytest.fixture(autouse=True)
def earlier_level(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = (FeatureRange(METADATA_VERSION, 1, 2), FeatureRange(ELIGIBLE_LEADERS, 0, 1))
    monkeypatch.setattr(features, "SUPPORTED_FEATURES", earlier)


@groups()
async def test_the_error_message_names_the_level_and_the_command_that_raises_it(
    node: Simulated,
) -> None:
    """Librdkafka shows the message, in a fatal error of its own; others retry for a minute."""
    client = await GroupClient.connect(node)
    for version in versions(ApiKey.FIND_COORDINATOR, 1):
        asked = FindCoordinatorRequest(key="tx", key_type=TRANSACTION)
        if version >= 4:
            asked = FindCoordinatorRequest(coordinator_keys=["tx"], key_type=TRANSACTION)
        found = await client.call(ApiKey.FIND_COORDINATOR, asked, version)
        if version >= 4:
            (found,) = found.coordinators
        fatal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert found.error_code == (fatal if version == OF_LIBRDKAFKA else TOO_LOW)
        assert "needs level 3 of metadata.version" in found.error_message
        assert COMMAND in found.error_message


@groups()
async def test_every_request_of_a_transaction_is_answered_with_unsupported_version(
    node: Simulated,
) -> None:
    client = await GroupClient.connect(node)
    call = client.call
    await client.client.create("t", 1)
    for version in versions(ApiKey.INIT_PRODUCER_ID):
        init = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1000)
        answer = await call(ApiKey.INIT_PRODUCER_ID, init, version)
        assert answer.error_code == TOO_LOW
    for name in ("t", "unknown"):
        topics = [AddPartitionsToTxnTopic(name=name, partitions=[0])]
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx", v3_and_below_topics=topics
        )
        answer = await call(ApiKey.ADD_PARTITIONS_TO_TXN, add, 3)
        (topic,) = answer.results_by_topic_v3_and_below
        assert topic.results_by_partition[0].partition_error_code == TOO_LOW
        row = TxnOffsetCommitRequestPartition(committed_metadata="")
        commit = TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id="g",
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=[row])],
        )
        answer = await call(ApiKey.TXN_OFFSET_COMMIT, commit, 5)
        assert answer.topics[0].partitions[0].error_code == TOO_LOW
    offsets = AddOffsetsToTxnRequest(transactional_id="tx", group_id="g")
    answer = await call(ApiKey.ADD_OFFSETS_TO_TXN, offsets)
    assert answer.error_code == TOO_LOW
    answer = await call(ApiKey.END_TXN, EndTxnRequest(transactional_id="tx"))
    assert answer.error_code == TOO_LOW
    describe = DescribeTransactionsRequest(transactional_ids=["tx"])
    answer = await call(ApiKey.DESCRIBE_TRANSACTIONS, describe)
    assert answer.transaction_states[0].error_code == TOO_LOW
    answer = await call(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest())
    assert answer.error_code == TOO_LOW
