"""Members of a group share the partitions, and the group reads each record."""

from collections import Counter

import pytest

from tests.conformance.clients import Librdkafka, Record, create
from tests.conformance.groups.members import CLIENTS, LIMIT_S, Member, Members, read_by, wait_shared
from tests.nodes import Peer, unique, wait_until

PARTITIONS = 4
EACH = 25
TWO_CLIENTS = [("librdkafka", "kafka-python"), ("kafka-python", "aiokafka"), ("aiokafka",) * 2]

pytestmark = pytest.mark.slow


def new_topic(peer: Peer, partitions: int = PARTITIONS) -> str:
    return create(peer.bootstrap, unique("shared"), partitions)


def places(topic: str, partitions: int = PARTITIONS) -> list[tuple[str, int]]:
    return [(topic, index) for index in range(partitions)]


def send(peer: Peer, topic: str, start: int = 0, partitions: int = PARTITIONS) -> set[str]:
    """Send records to each partition; return their values, which are unique."""
    sent = set()
    for index in range(partitions):
        values = [f"{index}:{number}" for number in range(start, start + EACH)]
        records = [Record(None, value.encode()) for value in values]
        Librdkafka().send(peer.bootstrap, topic, records, "none", index)
        sent |= set(values)
    return sent


@pytest.mark.parametrize("client", CLIENTS)
def test_a_subscriber_reads_each_record_once_and_in_order(
    peer: Peer, members: Members, client: str
) -> None:
    topic = new_topic(peer)
    sent = send(peer, topic)
    member = members.start(client, peer.bootstrap, unique("group"), topic)
    member.wait(lambda: len(member.read()) >= len(sent), "all records")
    assert Counter(member.read()) == Counter(sent)
    for index in range(PARTITIONS):
        offsets = [one["offset"] for one in member.all("record") if one["partition"] == index]
        assert offsets == list(range(EACH))


@pytest.mark.parametrize("pair", TWO_CLIENTS, ids="+".join)
def test_two_members_share_the_partitions_and_each_record_is_read_once(
    peer: Peer, members: Members, pair: tuple[str, str]
) -> None:
    """Clients of two projects have one protocol in common: range."""
    topic, group = new_topic(peer), unique("group")
    both = [members.start(client, peer.bootstrap, group, topic) for client in pair]
    wait_shared(both, places(topic))
    assert [len(member.assignment()) for member in both] == [PARTITIONS // 2] * 2
    sent = send(peer, topic)
    wait_until(lambda: len(read_by(both)) == len(sent), LIMIT_S)
    assert read_by(both) == Counter(sent)


@pytest.mark.parametrize("client", CLIENTS)
def test_two_groups_each_read_all_records(peer: Peer, members: Members, client: str) -> None:
    topic = new_topic(peer)
    both = [members.start(client, peer.bootstrap, unique("group"), topic) for _ in range(2)]
    sent = send(peer, topic)
    wait_until(lambda: all(len(member.read()) >= len(sent) for member in both), LIMIT_S)
    for member in both:
        assert Counter(member.read()) == Counter(sent)


@pytest.mark.parametrize("client", CLIENTS)
def test_nothing_is_skipped_while_members_join_leave_and_are_killed(
    peer: Peer, members: Members, client: str
) -> None:
    topic, group = new_topic(peer), unique("group")

    def start() -> Member:
        return members.start(client, peer.bootstrap, group, topic, session_ms=3000)

    first, second = start(), start()
    wait_shared([first, second], places(topic))
    sent = send(peer, topic)
    third = start()
    wait_shared([first, second, third], places(topic))
    sent |= send(peer, topic, EACH)
    second.close()
    wait_shared([first, third], places(topic))
    sent |= send(peer, topic, 2 * EACH)
    third.kill()
    wait_shared([first], places(topic))
    sent |= send(peer, topic, 3 * EACH)
    everyone = [first, second, third]
    wait_until(lambda: set(read_by(everyone)) == sent, LIMIT_S)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_restarted_member_resumes_at_the_commit(
    peer: Peer, members: Members, client: str
) -> None:
    topic, group = new_topic(peer), unique("group")
    before = send(peer, topic)
    first = members.start(client, peer.bootstrap, group, topic)
    wait_until(lambda: set(first.read()) == before, LIMIT_S)
    first.wait_for("committed", 1)
    first.close()
    after = send(peer, topic, EACH)
    second = members.start(client, peer.bootstrap, group, topic)
    wait_until(lambda: len(second.read()) >= len(after), LIMIT_S)
    assert Counter(second.read()) == Counter(after)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_member_without_a_commit_is_followed_from_the_start(
    peer: Peer, members: Members, client: str
) -> None:
    topic, group = new_topic(peer), unique("group")
    sent = send(peer, topic)
    first = members.start(client, peer.bootstrap, group, topic, commit_each=False)
    wait_until(lambda: set(first.read()) == sent, LIMIT_S)
    first.close()
    second = members.start(client, peer.bootstrap, group, topic)
    wait_until(lambda: set(second.read()) == sent, LIMIT_S)


@pytest.mark.parametrize("client", CLIENTS)
def test_offsets_are_committed_by_the_client_itself(
    peer: Peer, members: Members, client: str
) -> None:
    topic, group = new_topic(peer), unique("group")
    sent = send(peer, topic)
    options = {"commit_each": False, "auto_commit_ms": 100}
    first = members.start(client, peer.bootstrap, group, topic, **options)
    wait_until(lambda: set(first.read()) == sent, LIMIT_S)
    first.close()
    after = send(peer, topic, EACH)
    second = members.start(client, peer.bootstrap, group, topic)
    wait_until(lambda: len(second.read()) >= len(after), LIMIT_S)
    assert Counter(second.read()) == Counter(after)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_pattern_subscribes_to_topics_that_are_created_later(
    peer: Peer, members: Members, client: str
) -> None:
    stem = unique("pattern")
    one = create(peer.bootstrap, f"{stem}-one", 1)
    create(peer.bootstrap, f"other-{stem}", 1)
    member = members.start(client, peer.bootstrap, unique("group"), pattern=f"{stem}-.*")
    wait_until(lambda: member.assignment() == {(one, 0)}, LIMIT_S)
    two = create(peer.bootstrap, f"{stem}-two", 1)
    wait_until(lambda: member.assignment() == {(one, 0), (two, 0)}, LIMIT_S)
    sent = send(peer, two, partitions=1)
    wait_until(lambda: set(member.read()) == sent, LIMIT_S)
