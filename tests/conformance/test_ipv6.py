"""A cluster whose nodes use IPv6 addresses for each other and for clients."""

import re
from collections.abc import Iterator

import pytest

from tests.cli.admin.running import Admin
from tests.clusters import Cluster
from tests.conformance.clients import Librdkafka, Record
from tests.conftest import KafkaTool
from tests.nodes import elsewhere, needs_ipv6, unique, wait_until

pytestmark = [
    needs_ipv6,
    pytest.mark.skipif(bool(elsewhere()), reason="starts a cluster of our own"),
]
HOST = "[::1]"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), (1,), (1, 2), host=HOST)
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def topic(cluster: Cluster) -> str:
    name = unique("six")
    Admin()("-b", cluster.bootstrap, "topics", "create", name, "--replication-factor", 2)
    return name


def test_librdkafka_writes_and_reads(cluster: Cluster, topic: str) -> None:
    records = [Record(b"k%d" % number, b"v") for number in range(10)]
    client = Librdkafka()
    client.send(cluster[1].bootstrap, topic, records, "none", acks="all")
    found = client.read(cluster[2].bootstrap, topic, len(records))
    assert [stored.record.key for stored in found] == [record.key for record in records]


def test_kafkas_tools_find_both_workers(
    cluster: Cluster, topic: str, kafka_tool: KafkaTool
) -> None:
    def described() -> str:
        at = ["--bootstrap-server", cluster[2].bootstrap]
        return kafka_tool("topics", *at, "--describe", "--topic", topic).stdout

    wait_until(lambda: re.search(r"Isr: (1,2|2,1)\b", described()), what="both in sync")


def test_mq_admin_writes_addresses_as_it_takes_them(cluster: Cluster) -> None:
    admin = Admin()
    nodes = admin.json("-b", cluster[1].bootstrap, "cluster", "describe")["nodes"]
    assert [f"[{one['host']}]:{one['port']}" for one in nodes] == cluster.bootstrap.split(",")
    replicas = admin.json("-b", cluster.bootstrap, "quorum")["replicas"]
    (voter,) = (one for one in replicas if one["role"] == "leader")
    assert f"1@{voter['address']}" == cluster.quorum


def test_an_address_has_one_quota_however_it_is_written(cluster: Cluster) -> None:
    admin, at = Admin(), ("-b", cluster[1].bootstrap, "quotas")
    admin(*at, "set", "--ip", "0:0:0:0:0:0:0:1", "connection_creation_rate=1000000")
    shown = admin.json(*at, "explain", "--ip", "::0001")
    assert shown["ip"] == "::1"
    (rate,) = (row for row in shown["quotas"] if row["quota"] == "connection_creation_rate")
    assert rate["value"] == 1_000_000
    admin(*at, "delete", "--ip", "::1", "connection_creation_rate", "--yes")
