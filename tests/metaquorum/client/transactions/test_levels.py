"""transaction.version is raised in a transaction: a producer changes at its next one.

From level 2, records add their partition to the transaction themselves. If the transaction before
had the same epoch, and its markers were still to be written, they would join that one, and their
own transaction would be empty. So the first transaction at level 2 has a new epoch, as in Kafka's
producer.
"""

from collections.abc import Iterator

import pytest

from metaquorum.client.cluster import Cluster
from metaquorum.client.socket_transport import BlockingAdmin, wait
from metaquorum.client.transactions.blocking import BlockingTransactionalProducer
from metaquorum.client.transactions.transactional_producer import TransactionalProducer
from metaquorum.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.conftest import PEERS
from tests.metaquorum.client.transactions.together import connected, new_topic, read, values
from tests.nodes import KafkaNode, Node, Peer, elsewhere, unique, wait_until

FEATURE = "transaction.version"
SAFE_DOWNGRADE = 2


@pytest.fixture(params=PEERS)
def own(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """Run a node for one test, which changes its features."""
    if elsewhere():
        pytest.skip("the levels of METAQUORUM_BOOTSTRAP are not changed")
    if request.param == "kafka":
        request.getfixturevalue("java")
    kind = KafkaNode if request.param == "kafka" else Node
    node = kind(tmp_path_factory.mktemp("own"))
    node.start()
    yield node
    node.stop()


def lower(cluster: Cluster, to: int) -> None:
    update = FeatureUpdateKey(feature=FEATURE, max_version_level=to, upgrade_type=SAFE_DOWNGRADE)
    response = wait(
        cluster.call(UpdateFeaturesRequest(timeout_ms=30_000, feature_updates=[update]))
    )
    codes = [response.error_code, *(each.error_code for each in response.results)]
    assert not any(codes), response


def test_a_producer_changes_at_its_next_transaction(own: Peer) -> None:
    with connected(own) as cluster:
        topic = new_topic(cluster)
        lower(cluster, 0)
        one = BlockingTransactionalProducer(
            TransactionalProducer(cluster, unique("id"), features_age_s=0)
        )
        one.init()

        def begins_at(wanted: int) -> bool:
            """Begin a transaction, and end it unless it has the level."""
            one.begin()
            if one.client.level == wanted:
                return True
            one.abort()
            return False

        wait_until(lambda: begins_at(0))
        epochs = []
        for now, raised in ((0, 1), (1, 2)):
            one.send(topic, values(f"{now} before"))
            BlockingAdmin(cluster).raise_features({FEATURE: raised})
            one.send(topic, values(f"{now} after"))
            assert one.client.level == now
            one.commit()
            epochs.append(one.client.producer[1])
            wait_until(lambda wanted=raised: begins_at(wanted))  # type: ignore[misc]
            epochs.append(one.client.producer[1])
        one.send(topic, values("2"))
        one.commit()
        epochs.append(one.client.producer[1])
        assert epochs == [0, 0, 0, 1, 2]
        expected = ["0 before", "0 after", "1 before", "1 after", "2"]
        wait_until(lambda: read(cluster, topic) == expected)
