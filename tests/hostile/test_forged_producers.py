"""Producer ids that clients make up, and those of others: no other producer notices."""

import contextlib
import itertools
import time
from typing import Final

import pytest

from metaquorum.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from metaquorum.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from metaquorum.wire.messages.end_txn import EndTxnRequest
from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from metaquorum.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.records import Record, encode_batch
from tests.conftest import NewNode
from tests.hostile.honest import Client
from tests.hostile.test_limits import address_of
from tests.nodes import elsewhere, unique, wait_until

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="a node with these settings is needed")

MOST: Final = 40
FLOOD: Final = 300
AT_ONCE: Final = 20
ELSEWHERE: Final = "127.0.0.2"
VERIFIES: Final = 11
TRANSACTION: Final = 1
LATER: Final = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


def created(client: Client) -> str:
    topic = unique("t")
    asked = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    answer = client.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[asked], timeout_ms=9000))
    assert not answer.topics[0].error_code
    return topic


def new_producer(client: Client, transactional_id: str | None = None) -> InitProducerIdResponse:
    asked = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=60_000, producer_id=-1
    )
    answers: list[InitProducerIdResponse] = []

    def is_done() -> bool:
        answers.append(client.call(ApiKey.INIT_PRODUCER_ID, asked, 4))
        return answers[-1].error_code not in LATER

    wait_until(is_done, what="a producer id")
    assert not answers[-1].error_code
    return answers[-1]


def produced(
    topic: str,
    producer_id: int,
    *,
    epoch: int = 0,
    sequence: int = 0,
    transactional_id: str | None = None,
) -> ProduceRequest:
    batch = encode_batch(
        [Record(0, int(time.time() * 1000), None, b"x")],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional_id is not None,
    )
    data = [PartitionProduceData(index=0, records=batch)]
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=9000,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )


def outcome(client: Client, asked: ProduceRequest) -> PartitionProduceResponse:
    answer = client.call(ApiKey.PRODUCE, asked, VERIFIES)
    row: PartitionProduceResponse = answer.responses[0].partition_responses[0]
    return row


def test_a_flood_of_producer_ids_neither_doubles_a_record_nor_stops_a_new_producer(
    start_node: NewNode,
) -> None:
    """Ids made up, and ids of the cluster: 100,000 of them once removed those of all others."""
    node = address_of(start_node({"max.producer.ids.per.client": MOST}))
    with (
        contextlib.closing(Client(*node)) as honest,
        contextlib.closing(Client(*node, source=ELSEWHERE)) as hostile,
    ):
        topic = created(honest)
        producer_id = new_producer(honest).producer_id
        first = outcome(honest, produced(topic, producer_id))
        assert not first.error_code
        made_up = {outcome(hostile, produced(topic, 10**6 + n)).error_code for n in range(FLOOD)}
        assert made_up == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
        codes = [
            outcome(hostile, produced(topic, new_producer(hostile).producer_id)).error_code
            for _ in range(FLOOD)
        ]
        assert codes.count(ErrorCode.NONE) == MOST // 2
        assert set(codes) == {ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS}
        again = outcome(honest, produced(topic, producer_id))  # its first answer was lost
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, first.base_offset)
        assert not outcome(honest, produced(topic, producer_id, sequence=1)).error_code
        assert not outcome(honest, produced(topic, new_producer(honest).producer_id)).error_code


def test_forged_requests_in_a_transaction_of_others_do_not_disturb_it(
    start_node: NewNode,
) -> None:
    """With the producer's own id: newer epochs, earlier sequences, another transactional id."""
    node = address_of(start_node())
    with (
        contextlib.closing(Client(*node)) as honest,
        contextlib.closing(Client(*node, source=ELSEWHERE)) as hostile,
    ):
        topic = created(honest)
        asked = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=["honest"])
        honest.call(ApiKey.FIND_COORDINATOR, asked, 4)
        producer = new_producer(honest, "honest")
        ids = producer.producer_id, producer.producer_epoch
        forged = [
            produced(topic, ids[0], epoch=ids[1], sequence=sequence, transactional_id="nobody")
            for sequence in (0, 2**31 - 1)
        ]
        newer = [
            produced(topic, ids[0], epoch=30_000, transactional_id=name)
            for name in ("nobody", "honest")
        ]
        for sequence in range(5):
            for one in forged:
                assert outcome(hostile, one).error_code
            add = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="honest",
                v3_and_below_producer_id=ids[0],
                v3_and_below_producer_epoch=ids[1],
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
            )

            def is_added(asked: AddPartitionsToTxnRequest = add) -> bool:
                (of_topic,) = honest.call(
                    ApiKey.ADD_PARTITIONS_TO_TXN, asked, 3
                ).results_by_topic_v3_and_below
                code = of_topic.results_by_partition[0].partition_error_code
                assert code == ErrorCode.NONE or code in LATER
                return code == ErrorCode.NONE

            wait_until(is_added, what="the partition in the transaction")
            for one in itertools.islice(itertools.cycle(forged + newer), AT_ONCE):
                hostile.send(ApiKey.PRODUCE, one, VERIFIES)
            batch = produced(
                topic, ids[0], epoch=ids[1], sequence=sequence, transactional_id="honest"
            )
            row = outcome(honest, batch)
            assert not row.error_code, row.error_message
            hostile.skip(AT_ONCE)
            end = EndTxnRequest(
                transactional_id="honest",
                producer_id=ids[0],
                producer_epoch=ids[1],
                committed=True,
            )
            assert not honest.call(ApiKey.END_TXN, end, 3).error_code
