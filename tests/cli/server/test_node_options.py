"""Options on the command line and in the file, and the errors for invalid ones."""

import os
from pathlib import Path
from typing import Any

import pytest

from metaquorum.cli.common.usage import UsageError
from metaquorum.cli.server.node_options import Invocation, invocation
from metaquorum.dataplane.node_config import ALL_ROLES, CONTROLLER, WORKER


def asked(*sets: str, config: Path | None = None, **options: Any) -> Invocation:
    return invocation(options, None if config is None else str(config), sets)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mq.toml"
    path.write_text(text)
    return path


def test_without_options_everything_has_a_default() -> None:
    got = asked()
    assert got.node.data_dir == os.path.abspath("mq-data")
    assert got.node.listen == ("127.0.0.1", 9092)
    assert got.node.advertise == ("127.0.0.1", None)
    assert (got.node.node_id, got.node.is_alone, got.node.roles) == (1, True, ALL_ROLES)
    assert (got.log_format, got.log_level) == ("text", "info")
    assert got.node.log_dirs == ()
    assert got.node.configs == {
        "node.id": "1",
        "broker.id": "1",
        "process.roles": "broker,controller",
        "log.dirs": os.path.abspath("mq-data"),
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "advertised.listeners": "PLAINTEXT://127.0.0.1:9092",
    }


@pytest.mark.parametrize(
    ("sets", "data_dir", "log_dirs"),
    [
        (["log.dirs=/a/, /b ,"], "/a", ("/a", "/b")),
        (["log.dir=/a"], "/a", ("/a",)),
        (["log.dir=/a", "log.dirs=/b"], "/b", ("/b",)),
        (["log.dirs=/a,/b", "metadata.log.dir=/m"], "/m", ("/a", "/b")),
        (["metadata.log.dir=/m"], "/m", ()),
    ],
)
def test_log_directories_are_named_as_in_kafka(
    sets: list[str], data_dir: str, log_dirs: tuple[str, ...]
) -> None:
    node = asked(*sets).node
    assert (node.data_dir, node.log_dirs) == (data_dir, log_dirs)


def test_the_data_directory_may_be_another_than_the_log_directories() -> None:
    node = asked("log.dirs=/a,/b", data_dir="/m").node
    assert (node.data_dir, node.log_dirs) == ("/m", ("/a", "/b"))
    with pytest.raises(UsageError, match=r"--data-dir is /m.*metadata.log.dir is /n"):
        asked("metadata.log.dir=/n", data_dir="/m")
    with pytest.raises(UsageError, match=r"log.dirs is empty"):
        asked("log.dirs= ,")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9092", ("::1", 9092)),
        ("::1:9092", ("::1", 9092)),
        (":9092", ("0.0.0.0", 9092)),
        ("log1.example.org:65535", ("log1.example.org", 65535)),
    ],
)
def test_addresses_to_listen_at(text: str, address: tuple[str, int]) -> None:
    assert asked(listen=text).node.listen == address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("log1", ("log1", None)),
        ("log1:9999", ("log1", 9999)),
        ("[::1]", ("::1", None)),
        ("[::1]:9999", ("::1", 9999)),
        ("fe80::1", ("fe80::1", None)),
    ],
)
def test_addresses_to_advertise(text: str, address: tuple[str, int | None]) -> None:
    assert asked(listen="0.0.0.0:1", advertise=text).node.advertise == address


def test_a_node_that_listens_everywhere_advertises_its_name() -> None:
    import socket

    for everywhere in ("0.0.0.0:1", "[::]:1", ":1", "[0:0:0:0:0:0:0:0]:1"):
        assert asked(listen=everywhere).node.advertise == (socket.gethostname(), None)


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        data-dir = "/srv/log"
        node-id = 7
        rack = "a"
        log-format = "json"
        [config]
        "num.partitions" = 3
        log.retention.hours = 5
        auto.create.topics.enable = false
        "log.cleanup.policy" = ["delete"]
        """,
    )
    got = asked("num.partitions=4", config=path, rack="b")
    assert (got.node.data_dir, got.node.node_id, got.node.rack) == ("/srv/log", 7, "b")
    assert got.log_format == "json"
    shown = asked(node_id=7, data_dir="/srv/log", rack="b").node.configs
    assert got.node.configs == dict(shown) | {
        "num.partitions": "4",
        "log.retention.hours": "5",
        "auto.create.topics.enable": "false",
        "log.cleanup.policy": "delete",
    }


def test_what_options_say_is_shown_as_the_configs_of_kafka(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s" * 64)
    (tmp_path / "secret").chmod(0o600)
    node = asked(
        listen="[::1]:0",
        advertise="log.example.org:9093",
        rack="a",
        roles="worker",
        quorum="2@h2:1,3@::1:2,1@h1:3",
        node_id=7,
        cluster_id="A" * 22,
        secret_file=str(tmp_path / "secret"),
        metrics_listen="127.0.0.1:9400",
        data_dir="/d",
    ).node
    assert node.configs == {
        "node.id": "7",
        "broker.id": "7",
        "process.roles": "broker",
        "controller.quorum.voters": "1@h1:3,2@h2:1,3@[::1]:2",
        "log.dirs": "/d",
        "broker.rack": "a",
        "metrics.listen": "127.0.0.1:9400",
        "listeners": "PLAINTEXT://[::1]:0",
        "advertised.listeners": "PLAINTEXT://log.example.org:9093",
    }


def test_listeners_are_shown_as_they_were_given_and_a_port_yet_unknown_is_not() -> None:
    assert "advertised.listeners" not in asked(listen="127.0.0.1:0").node.configs
    given = asked("listeners=A://127.0.0.1:0", "listener.security.protocol.map=A:PLAINTEXT")
    assert given.node.configs["listeners"] == "A://127.0.0.1:0"
    assert "advertised.listeners" not in given.node.configs


def test_the_node_id_may_be_given_as_kafka_does() -> None:
    assert asked("node.id=5").node.node_id == 5
    assert asked("node.id=5", node_id=5).node.configs["node.id"] == "5"
    assert asked("broker.id=5").node.configs["node.id"] == "5"


CONTROLLERS = "1@a:1,2@b:2,3@[::1]:3"


@pytest.mark.parametrize("as_config", [False, True])
def test_a_node_is_told_of_the_others_by_options_or_as_kafka_does(
    tmp_path: Path, as_config: bool
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret that is long enough\n")
    secret.chmod(0o600)
    options: dict[str, Any] = {"node_id": 4, "secret_file": str(secret)}
    sets = ["process.roles=broker", f"controller.quorum.voters={CONTROLLERS}", "broker.rack=r"]
    if not as_config:
        options |= {"roles": "worker", "quorum": CONTROLLERS, "rack": "r"}
        sets = []
    node = asked(*sets, **options).node
    assert node.roles == {WORKER}
    assert node.controllers == {1: ("a", 1), 2: ("b", 2), 3: ("::1", 3)}
    assert (node.rack, node.secret) == ("r", b"a secret that is long enough")
    assert "secret that" not in repr(node)
    assert (node.is_alone, node.founds_cluster) == (False, False)


def test_only_the_one_controller_of_a_quorum_founds_a_cluster(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret that is long enough")
    secret.chmod(0o600)
    one = asked(quorum="1@a:1", roles="controller", secret_file=str(secret)).node
    assert (one.roles, one.founds_cluster, one.is_alone) == ({CONTROLLER}, True, False)
    assert not asked(quorum=CONTROLLERS, secret_file=str(secret)).node.founds_cluster


@pytest.mark.parametrize(
    ("options", "sets", "sentence"),
    [
        ({"listen": "9092"}, (), "--listen takes HOST:PORT"),
        ({"listen": "127.0.0.1:65536"}, (), "--listen takes HOST:PORT"),
        ({"listen": "127.0.0.1:-1"}, (), "--listen takes HOST:PORT"),
        ({"listen": "127.0.0.1:٣"}, (), "--listen takes HOST:PORT"),
        ({"advertise": ""}, (), "--advertise: clients cannot connect to nothing"),
        ({"advertise": "0.0.0.0:9092"}, (), "--advertise: clients cannot connect to 0.0.0.0:9092"),
        ({"advertise": "[0:0::0]"}, (), "--advertise: clients cannot connect to [0:0::0]"),
        ({"advertise": "[::1"}, (), "--advertise takes"),
        ({"advertise": "[log1]"}, (), "--advertise takes an IPv6 address as [::1]"),
        ({"listen": "[::1:9092"}, (), "--listen takes an IPv6 address as [::1]"),
        ({"listen": "::1]:9092"}, (), "--listen takes an IPv6 address as [::1]"),
        ({"listen": "[]:9092"}, (), "--listen takes an IPv6 address as [::1]"),
        ({"advertise": "host:port"}, (), "--advertise takes HOST:PORT"),
        ({"node_id": -1}, (), "--node-id must be from 0"),
        ({"node_id": 2**31}, (), "--node-id must be from 0"),
        ({"node_id": 4}, ("node.id=5",), "--node-id is 4 but node.id is 5"),
        ({}, ("node.id=5", "broker.id=6"), "node.id is 5 but broker.id is 6"),
        ({"roles": "brokers"}, (), "--roles takes"),
        ({"roles": "worker"}, (), "only a worker needs other nodes"),
        ({"quorum": "1"}, (), "--quorum takes"),
        ({"quorum": "1@a:1,2@b:1"}, (), "1, 3 or 5 controllers, not 2"),
        ({"quorum": "1@a:1,1@b:1"}, (), "names controller 1 twice"),
        ({"quorum": "1@a:0"}, (), "not 0"),
        ({"quorum": "1@a:1"}, (), "--secret-file"),
        ({"quorum": "1@a:1", "secret_file": "/no/such"}, (), "cannot read the secret file"),
        ({"quorum": "2@a:1"}, (), "does not contain it"),
        ({"quorum": "1@a:1", "roles": "worker"}, (), "contains node 1"),
        ({"quorum": "1@a:1"}, ("controller.quorum.voters=1@a:1",), "are both set"),
        ({"quorum_listen": "a:1"}, (), "--quorum-listen is only for controllers"),
        ({"cluster_id": "short"}, (), "--cluster-id takes 22"),
        ({"quorum_tls_key": "/k"}, (), "TLS between nodes needs"),
        ({"log_format": "xml"}, (), "log-format must be one of"),
        ({}, ("num.partitions",), "--set takes KEY=VALUE"),
        ({}, ("=3",), "--set takes KEY=VALUE"),
        ({}, ("num.partitons=3",), "did you mean num.partitions?"),
        ({}, ("num.partitions=none",), "Not a number"),
        ({}, ("num.partitions=0",), "at least 1"),
        (
            {},
            ("leader.replication.throttled.rate=7",),
            "mq-admin configs set broker default leader.replication.throttled.rate=7",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    options: dict[str, Any], sets: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        asked(*sets, **options)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("node-id = ", "is not TOML"),
        ("node_id = 3", "node_id is unknown"),
        ("node-id = true", "node-id must be a whole number"),
        ('node-id = "3"', "node-id must be a whole number"),
        ("config = 3", "must be a table"),
        ("[config]\nnum.partitions = 2024-01-01", "must be a string, a number"),
        ("[config]\nnum.partitons = 3", "did you mean num.partitions?"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        asked(config=written(tmp_path, text))
    assert sentence in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*absent\.toml: No such file"):
        asked(config=tmp_path / "absent.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not TOML"):
        asked(config=binary)


def test_metrics_are_served_where_an_option_or_a_config_says(tmp_path: Path) -> None:
    assert asked().node.metrics_listen is None
    node = asked(metrics_listen="127.0.0.1:9464").node
    assert node.metrics_listen == ("127.0.0.1", 9464)
    assert node.configs["metrics.listen"] == "127.0.0.1:9464"
    assert asked("metrics.listen=[::1]:0").node.metrics_listen == ("::1", 0)
    file = written(tmp_path, 'metrics-listen = ":9464"')
    assert asked(config=file).node.metrics_listen == ("0.0.0.0", 9464)
    with pytest.raises(UsageError, match="--metrics-listen takes HOST:PORT"):
        asked(metrics_listen="9464")
