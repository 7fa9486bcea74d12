"""Clients that claim to be a replica, with nodes as processes: regressions of successful attacks.

tests/dataplane/replication/test_replica_claims.py has more variants, in virtual time.
"""

import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from metaquorum.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from metaquorum.wire.messages.describe_workers import DescribeWorkersRequest
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from metaquorum.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.protocol.headers import encode_request
from metaquorum.wire.records.records import Record, encode_batch
from tests.clusters import Cluster
from tests.hostile.honest import Client
from tests.hostile.test_crowds import in_sync
from tests.hostile.test_limits import address_of, rss_kib
from tests.nodes import PATIENCE_S, elsewhere, unique, wait_until

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="nodes with these settings are needed")

LEADER: Final = 1
FOLLOWERS: Final = (2, 3)
FUTURE_EPOCH: Final = 2**62
BY_NAME: Final = 12
BY_STATE: Final = 17
MADE_UP_IDS: Final = 100_000
MAX_GROWTH_KIB: Final = 4096  # 400,000 of these took about 11 MB


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One controller, so that the quorum survives without the followers; the ISR does not shrink
    soon.
    """
    settings = {"replica.lag.time.max.ms": 60_000, "broker.session.timeout.ms": 60_000}
    found = Cluster(tmp_path, (LEADER,), (LEADER, *FOLLOWERS), settings)
    found.start()
    yield found
    for follower in FOLLOWERS:
        os.kill(found[follower].pid, signal.SIGCONT)
    found.stop()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with contextlib.closing(Client(*address_of(cluster[LEADER]))) as found:
        yield found


@pytest.fixture
def topic(client: Client) -> str:
    name = unique("claimed")
    made = CreatableTopic(
        name=name,
        assignments=[CreatableReplicaAssignment(broker_ids=[LEADER, *FOLLOWERS])],
        num_partitions=-1,
        replication_factor=-1,
    )
    asked = CreateTopicsRequest(topics=[made], timeout_ms=100_000)
    assert not client.call(ApiKey.CREATE_TOPICS, asked).topics[0].error_code
    wait_until(lambda: in_sync(client, name) == [LEADER, *FOLLOWERS], what="all in sync")
    send_produce(client, name, timeout_ms=100_000)
    assert produced(client) == ErrorCode.NONE
    return name


def send_produce(client: Client, topic: str, timeout_ms: int) -> None:
    """Send a produce request with acks=all."""
    batch = encode_batch([Record(0, int(time.time() * 1000), None, b"a record")])
    data = PartitionProduceData(index=0, records=batch)
    topic_data = TopicProduceData(name=topic, partition_data=[data])
    asked = ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=[topic_data])
    client.send(ApiKey.PRODUCE, asked)


def produced(client: Client) -> int:
    """Return the error code of the produce response."""
    answer = client.answer(ApiKey.PRODUCE)
    return int(answer.responses[0].partition_responses[0].error_code)


def as_follower(
    client: Client, topic: str, replica_id: int, epoch: int, offset: int, version: int
) -> int:
    """Fetch as a follower; return the error code of the only partition."""
    found = client.call(
        ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12
    )
    partition = FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1000, log_start_offset=0
    )
    message = FetchRequest(
        replica_id=-1 if version == BY_STATE else replica_id,
        replica_state=ReplicaState(replica_id=replica_id, replica_epoch=epoch),
        max_wait_ms=0,
        min_bytes=0,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, topic_id=found.topics[0].topic_id, partitions=[partition])],
    )
    if version < BY_STATE:
        message.replica_state = None
    answer = client.call(ApiKey.FETCH, message, version)
    return int(answer.responses[0].partitions[0].error_code)


@pytest.mark.parametrize("version", [BY_NAME, BY_STATE])
@pytest.mark.parametrize("is_true_epoch", [False, True])
def test_fetches_in_the_names_of_stopped_followers_acknowledge_nothing(
    cluster: Cluster, client: Client, topic: str, version: int, is_true_epoch: bool
) -> None:
    """Attack 02_forged_acks: 50 of 50 records were acknowledged, and lost with the leader."""
    epochs = true_epochs(client) if is_true_epoch else dict.fromkeys(FOLLOWERS, FUTURE_EPOCH)
    for follower in FOLLOWERS:
        os.kill(cluster[follower].pid, signal.SIGSTOP)
    with contextlib.closing(Client(*address_of(cluster[LEADER]))) as producer:
        send_produce(producer, topic, timeout_ms=1500)
        codes = {
            as_follower(client, topic, follower, epochs[follower], offset, version)
            for offset in (1, 2)
            for follower in FOLLOWERS
        }
        assert produced(producer) == ErrorCode.REQUEST_TIMED_OUT
    assert codes == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def test_a_fetch_with_a_future_epoch_does_not_put_the_true_follower_out(
    client: Client, topic: str
) -> None:
    """Attack 01_epoch_poison: the leader acknowledged no record until its end."""
    for follower in FOLLOWERS:
        as_follower(client, topic, follower, FUTURE_EPOCH, 0, BY_STATE)
    for _ in range(3):
        send_produce(client, topic, timeout_ms=20_000)
        assert produced(client) == ErrorCode.NONE
    assert in_sync(client, topic) == [LEADER, *FOLLOWERS]


def test_made_up_replica_ids_keep_no_memory(cluster: Cluster) -> None:
    """Attack 06_exhaust heard: 400,000 replica ids took 45 MB of memory."""
    with socket.create_connection(address_of(cluster[LEADER]), timeout=PATIENCE_S) as sock:
        answers = sock.makefile("rb")

        def claim(first: int, count: int) -> None:
            for start in range(first, first + count, 500):
                frames = [
                    encode_request(ApiKey.FETCH, BY_NAME, 1, "x", made_up(number))
                    for number in range(start, start + 500)
                ]
                sock.sendall(b"".join(frames))
                for _ in frames:
                    (size,) = struct.unpack(">i", answers.read(4))
                    assert len(answers.read(size)) == size

        claim(1000, 5000)
        before = rss_kib(cluster[LEADER])
        claim(10_000, MADE_UP_IDS)
        assert rss_kib(cluster[LEADER]) - before < MAX_GROWTH_KIB


def made_up(replica_id: int) -> FetchRequest:
    return FetchRequest(
        replica_id=replica_id, max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=[]
    )


def true_epochs(client: Client) -> dict[int, int]:
    """Return the broker epochs of the workers, which any client can read."""
    told = client.call(ApiKey.DESCRIBE_WORKERS, DescribeWorkersRequest(), 0)
    return {each.worker_id: each.broker_epoch for each in told.workers}
