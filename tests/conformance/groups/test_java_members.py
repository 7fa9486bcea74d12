"""Members with the Java client: Kafka's verifiable-consumer joins, leaves and is killed."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conformance.clients import Librdkafka, Record, create
from tests.conformance.groups.java_members import LIMIT_S, VerifiableConsumer
from tests.conformance.groups.members import Members
from tests.nodes import Peer, unique, wait_until

PARTITIONS = 4
EACH = 25
HEARTBEAT_MS = 300
ASSIGNORS = ("Range", "RoundRobin", "Sticky", "CooperativeSticky")
Start = Callable[..., VerifiableConsumer]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


@pytest.fixture
def start(peer: Peer, tmp_path: Path) -> Iterator[Start]:
    """Start consumers that notice a rebalance early, and kill them at the end."""
    config = tmp_path / "consumer.properties"
    config.write_text(f"heartbeat.interval.ms={HEARTBEAT_MS}\n")
    with ExitStack() as ended:

        def run(group: str, topic: str, *arguments: str) -> VerifiableConsumer:
            given = ("--command-config", str(config), *arguments)
            consumer = VerifiableConsumer(peer.bootstrap, group, topic, *given)
            ended.callback(consumer.kill)
            return consumer

        yield run


def send(peer: Peer, topic: str) -> None:
    for index in range(PARTITIONS):
        Librdkafka().send(peer.bootstrap, topic, [Record(None, b"x")] * EACH, "none", index)


def wait_owned(*consumers: VerifiableConsumer) -> None:
    """Wait until the consumers share all partitions in equal parts."""
    share = PARTITIONS // len(consumers)

    def owned() -> bool:
        parts = [each.assignment() for each in consumers]
        return len(set().union(*parts)) == PARTITIONS and {len(part) for part in parts} == {share}

    wait_until(owned, LIMIT_S, what=f"{PARTITIONS} partitions in {len(consumers)} equal parts")


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_java_members_join_leave_and_are_killed(peer: Peer, start: Start, assignor: str) -> None:
    topic, group = create(peer.bootstrap, unique("java"), PARTITIONS), unique("group")
    assignor = f"org.apache.kafka.clients.consumer.{assignor}Assignor"
    options = ("--session-timeout", "3000", "--assignment-strategy", assignor)
    first, second = (start(group, topic, *options) for _ in range(2))
    wait_owned(first, second)
    send(peer, topic)
    records = {(index, offset) for index in range(PARTITIONS) for offset in range(EACH)}
    wait_until(lambda: set(first.read() + second.read()) == records, LIMIT_S)
    assert Counter(first.read() + second.read()) == Counter(records)
    wait_until(lambda: len(first.committed() | second.committed()) == PARTITIONS, LIMIT_S)
    second.close()
    wait_owned(first)
    third = start(group, topic, *options)
    wait_owned(first, third)
    first.kill()
    wait_owned(third)
    send(peer, topic)
    records = {(index, EACH + offset) for index in range(PARTITIONS) for offset in range(EACH)}
    wait_until(lambda: set(third.read()) == records, LIMIT_S)
    assert Counter(third.read()) == Counter(records)


def test_a_killed_static_java_member_gets_its_partitions_back(peer: Peer, start: Start) -> None:
    topic, group = create(peer.bootstrap, unique("java"), PARTITIONS), unique("group")
    names = ("one", "two")
    first, second = (start(group, topic, "--group-instance-id", name) for name in names)
    wait_owned(first, second)
    owned, seen = first.assignment(), len(second.events)
    first.kill()
    again = start(group, topic, "--group-instance-id", "one")
    wait_until(lambda: again.assignment() == owned, LIMIT_S)
    assert [one["name"] for one in second.events[seen:]] == []


@pytest.mark.parametrize("client", ["librdkafka", "kafka-python", "aiokafka"])
def test_java_and_another_client_share_a_group(
    peer: Peer, start: Start, members: Members, client: str
) -> None:
    topic, group = create(peer.bootstrap, unique("java"), PARTITIONS), unique("group")
    java = start(group, topic)
    other = members.start(client, peer.bootstrap, group, topic)
    half = PARTITIONS // 2

    def shared() -> bool:
        parts = java.assignment(), other.assignment()
        return {len(part) for part in parts} == {half} and len(set().union(*parts)) == PARTITIONS

    wait_until(shared, LIMIT_S)
    send(peer, topic)
    wait_until(lambda: len(java.read()) + len(other.read()) == PARTITIONS * EACH, LIMIT_S)
    other.close()
    wait_owned(java)
