"""Static members, cooperative rebalances, slow members and rebalance listeners, with clients."""

import signal
from collections import Counter

import pytest
from confluent_kafka.admin import NewPartitions

from tests.conformance.clients import admin, create
from tests.conformance.groups.members import (
    CLIENTS,
    LIMIT_S,
    Member,
    Members,
    owners_by_generation,
    read_by,
    wait_shared,
)
from tests.conformance.groups.test_delivery import PARTITIONS, new_topic, places, send
from tests.nodes import Peer, unique, wait_until

# aiokafka 0.14 sends a group_instance_id, and has no cooperative assignor.
COOPERATIVE = ("librdkafka", "kafka-python")

pytestmark = pytest.mark.slow


def lost_by(member: Member, since: int) -> set[tuple[str, int]]:
    """Return the partitions that were revoked or lost after the first `since` events."""
    later = tuple(member.events)[since:]
    ended = [one for one in later if one["event"] in ("revoked", "lost")]
    return {(topic, index) for one in ended for topic, index in one["partitions"]}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_static_member_restarts_without_a_rebalance(
    peer: Peer, members: Members, client: str
) -> None:
    topic, group = new_topic(peer), unique("group")
    at = peer.bootstrap, group, topic
    first, second = (members.start(client, *at, instance=name) for name in ("one", "two"))
    wait_shared([first, second], places(topic))
    owned, generation, seen = first.assignment(), first.generation(), len(second.events)
    first.kill()
    restarted = members.start(client, *at, instance="one")
    restarted.wait(lambda: restarted.assignment() == owned, "the former assignment")
    assert restarted.generation() == generation
    sent = send(peer, topic)
    everyone = [first, second, restarted]
    wait_until(lambda: set(read_by(everyone)) == sent, LIMIT_S)
    assert read_by(everyone) == Counter(sent)
    assert [one for one in second.events[seen:] if "partitions" in one] == []


@pytest.mark.parametrize(
    ("client", "event", "error"),
    [
        ("librdkafka", "error", "_FATAL"),
        ("kafka-python", "commit failed", "FencedInstanceIdError"),  # its polls return no records
    ],
)
def test_the_former_of_two_members_with_one_instance_id_is_fenced(
    peer: Peer, members: Members, client: str, event: str, error: str
) -> None:
    topic, group = new_topic(peer), unique("group")
    first = members.start(client, peer.bootstrap, group, topic, instance="same")
    wait_shared([first], places(topic))
    second = members.start(client, peer.bootstrap, group, topic, instance="same")
    wait_shared([second], places(topic))
    first.tell("commit")
    assert first.wait_for(event)["name"] == error
    sent = send(peer, topic)
    wait_until(lambda: set(second.read()) == sent, LIMIT_S)


@pytest.mark.parametrize("client", COOPERATIVE)
def test_a_cooperative_rebalance_moves_only_the_partitions_of_the_new_member(
    peer: Peer, members: Members, client: str
) -> None:
    topic, group = new_topic(peer), unique("group")
    at, options = (peer.bootstrap, group, topic), {"assignor": "cooperative-sticky"}
    first = members.start(client, *at, **options)
    first.wait(lambda: first.assignment() == set(places(topic)), "all partitions")
    seen = len(first.events)
    second = members.start(client, *at, **options)
    half = PARTITIONS // 2
    wait_until(lambda: {len(each.assignment()) for each in (first, second)} == {half}, LIMIT_S)
    assert lost_by(first, seen) == second.assignment()
    sent = send(peer, topic)
    wait_until(lambda: set(read_by([first, second])) == sent, LIMIT_S)
    assert read_by([first, second]) == Counter(sent)


@pytest.mark.parametrize("client", CLIENTS)
def test_an_eager_listener_gives_partitions_back_before_it_gets_new_ones(
    peer: Peer, members: Members, client: str
) -> None:
    topic, group = new_topic(peer), unique("group")
    first = members.start(client, peer.bootstrap, group, topic)
    wait_shared([first], places(topic))
    second = members.start(client, peer.bootstrap, group, topic)
    wait_shared([first, second], places(topic))
    first.close()
    wait_shared([second], places(topic))
    for member in (first, second):
        kept: set[tuple[str, int]] = set()
        for one in member.events:
            partitions = {(name, index) for name, index in one.get("partitions", ())}
            if one["event"] == "assigned":
                assert not kept, "assigned before the former partitions were revoked"
                kept = partitions
            elif one["event"] in ("revoked", "lost"):
                assert partitions == kept
                kept = set()
    generations = [one["generation"] for one in second.all("assigned")]
    assert generations == sorted(set(generations))


@pytest.mark.parametrize("client", ["librdkafka", "kafka-python"])
def test_a_member_that_polls_too_rarely_leaves_the_group(
    peer: Peer, members: Members, client: str
) -> None:
    topic, group = new_topic(peer), unique("group")
    options = {"max_poll_ms": 3000, "session_ms": 3000}
    slow, other = (members.start(client, peer.bootstrap, group, topic, **options) for _ in range(2))
    wait_shared([slow, other], places(topic))
    slow.tell("stall")
    other.wait(lambda: other.assignment() == set(places(topic)), "all partitions")
    sent = send(peer, topic)
    wait_until(lambda: set(other.read()) == sent, LIMIT_S)
    slow.tell("resume")
    wait_shared([slow, other], places(topic))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_frozen_member_is_replaced_and_comes_back(
    peer: Peer, members: Members, client: str
) -> None:
    """The process is stopped (SIGSTOP) for longer than its session timeout."""
    topic, group = new_topic(peer), unique("group")
    frozen, other = (
        members.start(client, peer.bootstrap, group, topic, session_ms=2000) for _ in range(2)
    )
    wait_shared([frozen, other], places(topic))
    frozen.pause(signal.SIGSTOP)
    other.wait(lambda: other.assignment() == set(places(topic)), "all partitions")
    frozen.pause(signal.SIGCONT)
    wait_shared([frozen, other], places(topic))
    sent = send(peer, topic)
    wait_until(lambda: set(read_by([frozen, other])) == sent, LIMIT_S)
    assert {len(ids) for ids in owners_by_generation([frozen, other]).values()} == {1}


@pytest.mark.parametrize("client", CLIENTS)
def test_new_partitions_are_assigned(peer: Peer, members: Members, client: str) -> None:
    topic, group = create(peer.bootstrap, unique("grown"), 1), unique("group")
    member = members.start(client, peer.bootstrap, group, topic)
    wait_shared([member], places(topic, 1))
    admin(peer.bootstrap).create_partitions([NewPartitions(topic, 3)])[topic].result(LIMIT_S)
    wait_shared([member], places(topic, 3))
    sent = send(peer, topic, partitions=3)
    wait_until(lambda: set(member.read()) == sent, LIMIT_S)
