"""Members with franz-go, sarama and kafkajs, if Go or Node.js is installed."""

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.conformance.groups.members import (
    LIMIT_S,
    Member,
    Members,
    owners_by_generation,
    read_by,
    wait_shared,
)
from tests.conformance.groups.test_delivery import EACH, new_topic, places, send
from tests.conformance.other_languages.programs import HERE, go_program
from tests.conformance.other_languages.programs import kafkajs as kafkajs_modules
from tests.nodes import Peer, unique, wait_until

CLIENTS = ("franz-go", "sarama", "kafkajs")
GO = ("franz-go", "sarama")

pytestmark = pytest.mark.conformance


@pytest.fixture
def client(request: pytest.FixtureRequest, members: Members) -> str:
    """Build or install the member of the client that the test names; skip if that fails."""
    name = str(request.param)
    members.commands[name] = (go_program(name, "member"),) if name in GO else kafkajs()
    return name


def kafkajs() -> Sequence[str]:
    modules = f"NODE_PATH={kafkajs_modules()}"
    return ["env", modules, "node", str(HERE / "kafkajs_member.js")]


@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_members_share_partitions_leave_and_are_killed(
    peer: Peer, members: Members, client: str
) -> None:
    topic, group = new_topic(peer), unique("group")

    def start() -> Member:
        return members.start(client, peer.bootstrap, group, topic, session_ms=3000)

    first, second = start(), start()
    wait_shared([first, second], places(topic))
    sent = send(peer, topic)
    wait_until(lambda: set(read_by([first, second])) == sent, LIMIT_S)
    assert read_by([first, second]) == Counter(sent)
    second.wait_for("committed")
    second.close()
    wait_shared([first], places(topic))
    third = start()
    wait_shared([first, third], places(topic))
    first.kill()
    wait_shared([third], places(topic))
    sent |= send(peer, topic, EACH)
    wait_until(lambda: set(read_by([first, second, third])) == sent, LIMIT_S)


@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_a_restarted_member_resumes_at_the_commit(
    peer: Peer, members: Members, client: str
) -> None:
    topic, group = new_topic(peer), unique("group")
    before = send(peer, topic)
    first = members.start(client, peer.bootstrap, group, topic)
    wait_until(lambda: set(first.read()) == before, LIMIT_S)
    first.close()
    after = send(peer, topic, EACH)
    second = members.start(client, peer.bootstrap, group, topic)
    wait_until(lambda: len(second.read()) >= len(after), LIMIT_S)
    assert Counter(second.read()) == Counter(after)


@pytest.mark.parametrize("client", GO, indirect=True)
@pytest.mark.parametrize("other", ["librdkafka", "kafka-python", "aiokafka"])
def test_clients_of_two_projects_share_a_group(
    peer: Peer, members: Members, client: str, other: str
) -> None:
    topic, group = new_topic(peer), unique("group")
    both = [members.start(each, peer.bootstrap, group, topic) for each in (client, other)]
    wait_shared(both, places(topic))
    sent = send(peer, topic)
    wait_until(lambda: set(read_by(both)) == sent, LIMIT_S)
    assert {len(ids) for ids in owners_by_generation(both).values()} == {1}
    both[1].close()
    wait_shared(both[:1], places(topic))


@pytest.mark.parametrize("client", GO, indirect=True)
def test_a_static_member_restarts_without_a_rebalance(
    peer: Peer, members: Members, client: str
) -> None:
    topic, group = new_topic(peer), unique("group")
    at = peer.bootstrap, group, topic
    first, second = (members.start(client, *at, instance=name) for name in ("one", "two"))
    wait_shared([first, second], places(topic))
    owned, seen = first.assignment(), len(second.events)
    first.kill()
    restarted = members.start(client, *at, instance="one")
    restarted.wait(lambda: restarted.assignment() == owned, "the former assignment")
    assert [one for one in second.events[seen:] if "partitions" in one] == []


@pytest.mark.parametrize("client", ["franz-go"], indirect=True)
@pytest.mark.parametrize("other", ["franz-go", "librdkafka"])
def test_a_cooperative_member_keeps_partitions_when_another_joins(
    peer: Peer, members: Members, client: str, other: str
) -> None:
    topic, group = new_topic(peer), unique("group")
    at, options = (peer.bootstrap, group, topic), "cooperative-sticky"
    first = members.start(client, *at, assignor=options)
    first.wait(lambda: first.assignment() == set(places(topic)), "all partitions")
    seen = len(first.events)
    second = members.start(other, *at, assignor=options)
    wait_until(lambda: len(second.assignment()) == len(first.assignment()) == 2, LIMIT_S)
    revoked = {
        (topic, index)
        for one in first.events[seen:]
        if one["event"] == "revoked"
        for topic, index in one["partitions"]
    }
    assert revoked == second.assignment()
