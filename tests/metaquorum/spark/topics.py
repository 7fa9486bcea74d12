"""Topics with records, for tests that read them."""

from collections.abc import Iterable

from metaquorum.client.cluster import Cluster
from metaquorum.client.errors import BrokerError
from metaquorum.client.producer import Producer, ProducerRecord
from metaquorum.client.socket_transport import BlockingAdmin, BlockingProducer, connect
from metaquorum.client.values import NewTopic
from metaquorum.wire.records.records import Codec
from tests.nodes import PATIENCE_S, unique, wait_until


def new_topic(cluster: Cluster, partitions: int = 1, **configs: str) -> str:
    """Create a topic; underscores in config names become dots."""
    admin, name = BlockingAdmin(cluster), unique("spark")
    texts = {key.replace("_", "."): value for key, value in configs.items()}
    made = admin.create_topics([NewTopic(name, partitions, 1, texts)])[name]
    if isinstance(made, BrokerError):
        raise made
    wait_until(lambda: not isinstance(admin.describe_topics([name])[name], BrokerError))
    return name


def send(
    cluster: Cluster, topic: str, records: Iterable[ProducerRecord], codec: Codec = Codec.NONE
) -> None:
    BlockingProducer(Producer(cluster, codec=codec)).send(topic, records)


def filled_topic(
    bootstrap: str,
    records: Iterable[ProducerRecord],
    partitions: int = 1,
    codec: Codec = Codec.NONE,
) -> str:
    with connect(bootstrap, timeout_s=PATIENCE_S) as cluster:
        topic = new_topic(cluster, partitions)
        send(cluster, topic, records, codec)
    return topic
