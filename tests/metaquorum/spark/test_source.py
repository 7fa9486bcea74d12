"""Records read by the data source, without Java; `by_spark.test_source` has Spark read them."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from metaquorum.client.cluster import TopicPartition
from metaquorum.client.producer import ProducerRecord
from metaquorum.client.socket_transport import BlockingAdmin, connect
from metaquorum.spark.columns import schema
from metaquorum.spark.errors import LoadError
from metaquorum.spark.options import ReadOptions
from metaquorum.wire.records.records import Codec
from tests.metaquorum.security.certificates import Authority
from tests.metaquorum.spark.topics import filled_topic
from tests.nodes import PATIENCE_S, Node, Peer, elsewhere, free_ports

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from metaquorum.spark.source import DefaultSource, RangesReader

pytestmark = pytest.mark.conformance

PASSWORD = "s3cret of alice, unlike others"
BEGAN_MS = 1_700_000_000_000
START = datetime.fromtimestamp(BEGAN_MS / 1000, UTC).replace(tzinfo=None)


def record(number: int, partition: int = 0) -> ProducerRecord:
    """Some keys, values and headers are missing."""
    return ProducerRecord(
        None if number % 7 == 0 else b"value %d" % number,
        None if number % 3 == 0 else b"key %d" % number,
        (("h", b"%d" % number), ("h", None)) if number % 2 else (),
        BEGAN_MS + number,
        partition,
    )


def row(number: int, topic: str, partition: int = 0, offset: int | None = None) -> dict[str, Any]:
    """Return the rows that the data source should have of `record(number)`."""
    sent = record(number, partition)
    return {
        "key": sent.key,
        "value": sent.value,
        "topic": topic,
        "partition": partition,
        "offset": number if offset is None else offset,
        "timestamp": START + timedelta(milliseconds=number),
        "timestampType": 0,
        "headers": [{"key": key, "value": value} for key, value in sent.headers] or None,
    }


def reader(bootstrap: str, **options: object) -> RangesReader:
    texts = {name: str(value) for name, value in options.items()}
    return RangesReader(ReadOptions.parse({"kafka.bootstrap.servers": bootstrap, **texts}))


def read(bootstrap: str, **options: object) -> list[dict[str, Any]]:
    """Return the rows of the Spark tasks, run one after the other."""
    made = reader(bootstrap, **options)
    batches = [batch for part in made.partitions() for batch in made.read(part)]
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist() if batches else []
    for each in rows:
        if "timestamp" in each:
            each["timestamp"] = each["timestamp"].replace(tzinfo=None)
    return rows


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_every_codec_is_read(either: Peer, codec: Codec) -> None:
    topic = filled_topic(either.bootstrap, map(record, range(100)), codec=codec)
    assert read(either.bootstrap, subscribe=topic, includeHeaders="true") == [
        row(number, topic) for number in range(100)
    ]


def test_the_types_are_those_of_the_connector() -> None:
    given = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
    plain = (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
    )
    assert DefaultSource(given).schema() == plain
    header = StructType().add("key", StringType()).add("value", BinaryType())
    whole = DefaultSource({**given, "includeHeaders": "true"}).schema()
    assert whole == plain.add("headers", ArrayType(header))
    assert schema(include_headers=True, columns=None).names == whole.names
    chosen = DefaultSource({**given, "columns": "offset,key"}).schema()
    assert chosen.names == ["key", "offset"]


def test_columns_that_are_not_chosen_are_not_read(node: Peer) -> None:
    topic = filled_topic(node.bootstrap, map(record, range(10)))
    found = read(node.bootstrap, subscribe=topic, columns="offset,key")
    assert found == [{"key": record(n).key, "offset": n} for n in range(10)]


def test_ranges_by_time_and_splits(node: Peer) -> None:
    records = [record(number, number % 2) for number in range(100)]
    topic = filled_topic(node.bootstrap, records, partitions=2)
    found = read(
        node.bootstrap,
        subscribe=topic,
        startingTimestamp=BEGAN_MS + 20,
        endingTimestamp=BEGAN_MS + 60,
        includeHeaders="true",
    )
    assert found == [
        row(number, topic, partition, number // 2)
        for partition in (0, 1)
        for number in range(20 + partition, 60, 2)
    ]
    split = reader(node.bootstrap, subscribe=topic, minPartitions=8)
    assert len(split.partitions()) == 8
    limited = reader(node.bootstrap, subscribe=topic, maxRecordsPerPartition=7)
    sizes = [sum(b.num_rows for b in limited.read(part)) for part in limited.partitions()]
    assert max(sizes) <= 7
    assert sum(sizes) == 100


def test_what_was_deleted_is_left_out_or_an_error(
    node: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    """The records are deleted between the plan and the read, as by retention."""
    topic = filled_topic(node.bootstrap, map(record, range(100)))
    strict = reader(node.bootstrap, subscribe=topic)
    lenient = reader(node.bootstrap, subscribe=topic, failOnDataLoss="false")
    plans = [strict.partitions(), lenient.partitions()]
    with connect(node.bootstrap, timeout_s=PATIENCE_S) as cluster:
        BlockingAdmin(cluster).delete_records({TopicPartition(topic, 0): 60})
    with pytest.raises(LoadError, match="failOnDataLoss"):
        list(strict.read(plans[0][0]))
    assert sum(batch.num_rows for batch in lenient.read(plans[1][0])) == 40
    assert "60 offsets are deleted" in caplog.text


def test_no_partitions_are_read_as_nothing(node: Peer) -> None:
    """Spark then reads a partition of its own, None."""
    topic = filled_topic(node.bootstrap, [])
    made = reader(node.bootstrap, subscribe=topic)
    assert made.partitions() == []
    assert list(made.read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("3.5.4", "needs PySpark 4.0 to 4.3, but 3.5.4 is installed"),
        ("5.0.0", "but 5.0.0 is installed"),
    ],
)
def test_a_wrong_spark_is_told(tmp_path: Path, version: str, words: str) -> None:
    folder = tmp_path / "pyspark"
    folder.mkdir()
    (folder / "__init__.py").write_text(f"__version__ = {version!r}\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import metaquorum.spark.source"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1]


# Security


@dataclass(frozen=True)
class Secured:
    """A node for alice, who has a password, and another one that needs a certificate."""

    node: Node
    authority: Authority
    sasl: str
    tls: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    if elsewhere():
        pytest.skip("another cluster has other users")
    folder, port = tmp_path_factory.mktemp("secured"), free_ports((1, 2))
    authority = Authority(folder)
    addresses = [f"127.0.0.1:{port + offset}" for offset in range(3)]
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    node = Node(
        folder,
        {
            "listeners": ",".join(
                f"{name}://{address}"
                for name, address in zip(("PLAINTEXT", "SASL_SSL", "SSL"), addresses, strict=True)
            ),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (f'{module} user_alice="{PASSWORD}";'),
            "ssl.keystore.location": authority.store("node"),
            "ssl.truststore.location": authority.path,
            "listener.name.ssl.ssl.client.auth": "required",
        },
    )
    node.start()
    client = AdminClient({"bootstrap.servers": addresses[0], "log_level": 0})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        info = ScramCredentialInfo(mechanism, 4096)
        upsertion = UserScramCredentialUpsertion("alice", info, PASSWORD.encode())
        client.alter_user_scram_credentials([upsertion])["alice"].result(PATIENCE_S)
    node.bootstrap = addresses[0]
    yield Secured(node, authority, *addresses[1:])
    node.stop()


def sasl_options(secured: Secured, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
        f'username="alice" password="{password}";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": secured.authority.path,
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_users_log_in(secured: Secured, mechanism: str) -> None:
    topic = filled_topic(secured.node.bootstrap, map(record, range(10)))
    options = sasl_options(secured, mechanism)
    assert len(read(secured.sasl, subscribe=topic, **options)) == 10
    with pytest.raises(Exception, match=r"(?i)authentication|credentials") as caught:
        read(secured.sasl, subscribe=topic, **sasl_options(secured, mechanism, PASSWORD + "!"))
    assert PASSWORD not in str(caught.value)


def test_certificates_are_shown_and_checked(secured: Secured) -> None:
    topic = filled_topic(secured.node.bootstrap, map(record, range(10)))
    trust = {"kafka.security.protocol": "SSL", "kafka.ssl.ca.location": secured.authority.path}
    own = {
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": secured.authority.store("alice", common_name="alice"),
    }
    assert len(read(secured.tls, subscribe=topic, **trust, **own)) == 10
    with pytest.raises(Exception, match="TLS"):
        read(secured.tls, subscribe=topic, **own, **{"kafka.security.protocol": "SSL"})
    with pytest.raises(ValueError, match=r"nowhere\.pem cannot be read"):
        read(secured.tls, subscribe=topic, **trust | {"kafka.ssl.ca.location": "nowhere.pem"})
