"""Each record of a topic is copied exactly once, while copiers and nodes are killed."""

import pytest

from tests.conformance.clients import create
from tests.conformance.groups.peers import ThreeNodes
from tests.conformance.transactions.copiers import (
    FRANZ_GO,
    GO,
    PYTHON,
    SHARING,
    Copiers,
    Reader,
    send,
)
from tests.nodes import PATIENCE_S, Peer, unique, wait_until

EACH = 60
PARTITIONS = 2
LIMIT_S = PATIENCE_S

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("client", [*PYTHON, *GO])
def test_a_killed_copier_is_replaced(peer: Peer, copiers: Copiers, client: str) -> None:
    """The next one has the same transactional id, and aborts the transaction that was left."""
    source = create(peer.bootstrap, unique("source"), PARTITIONS)
    target = create(peer.bootstrap, unique("target"), PARTITIONS)
    sent = send(peer.bootstrap, source, PARTITIONS, EACH)
    options = {
        "bootstrap": peer.bootstrap,
        "group": unique("group"),
        "source": source,
        "target": target,
        "most": 5,
    }
    name = unique("copier")
    kept = copiers.keep(client, name, **options)
    for _ in range(3):
        kept.wait_committed(2)
        kept.kill()
    with Reader(peer.bootstrap, target) as reader:

        def are_all_copied() -> bool:
            kept.look()
            return set(reader.read()) == set(sent)

        wait_until(are_all_copied, LIMIT_S, what="all records copied")
        sent += send(peer.bootstrap, source, PARTITIONS, 5, EACH)
        wait_until(are_all_copied, LIMIT_S, what="all records copied")
        assert reader.read() == sent


@pytest.mark.parametrize("client", SHARING)
def test_copiers_share_a_group_and_one_is_killed(peer: Peer, copiers: Copiers, client: str) -> None:
    """With transactional ids of their own: fenced by the generation of the group (KIP-447)."""
    source = create(peer.bootstrap, unique("source"), PARTITIONS)
    target = create(peer.bootstrap, unique("target"), PARTITIONS)
    sent = send(peer.bootstrap, source, PARTITIONS, EACH)
    options = {
        "bootstrap": peer.bootstrap,
        "group": unique("group"),
        "source": source,
        "target": target,
        "most": 5,
    }
    first = copiers.start(client, unique("copier"), **options)
    first.wait_for("committed")
    second = copiers.start(client, unique("copier"), **options)
    second.wait_for("ready")
    first.kill()
    with Reader(peer.bootstrap, target) as reader:
        wait_until(lambda: set(reader.read()) == set(sent), LIMIT_S, what="all records copied")
        more = send(peer.bootstrap, source, PARTITIONS, 5, EACH)
        wait_until(lambda: reader.read() == sent + more, LIMIT_S, what="each copied once")
    second.close()


@pytest.mark.parametrize("client", ["librdkafka", FRANZ_GO])
def test_nodes_are_killed_while_topics_are_copied(
    three_nodes: ThreeNodes, copiers: Copiers, client: str
) -> None:
    bootstrap = ",".join(three_nodes.addresses)
    source = create(bootstrap, unique("source"), PARTITIONS, replicas=3)
    target = create(bootstrap, unique("target"), PARTITIONS, replicas=3)
    sent = send(bootstrap, source, PARTITIONS, EACH)
    options = {
        "bootstrap": bootstrap,
        "group": unique("group"),
        "source": source,
        "target": target,
        "most": 5,
    }
    kept = copiers.keep(client, unique("copier"), **options)
    kept.wait_committed(2)
    with Reader(bootstrap, target) as reader:

        def are_all_copied() -> bool:
            kept.look()
            return set(reader.read()) == set(sent)

        for number in (1, 2, 3):
            three_nodes.kill(number)
            sent += send(bootstrap, source, PARTITIONS, 5, EACH + number * 5)
            wait_until(are_all_copied, LIMIT_S, what=kept)
            three_nodes.restart(number)
        sent += send(bootstrap, source, PARTITIONS, 5, EACH + 100)
        wait_until(are_all_copied, LIMIT_S, what="copied")
        assert reader.read() == sent
