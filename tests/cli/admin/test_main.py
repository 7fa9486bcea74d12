"""mq-admin: effects, output and exit codes with metaquorum and a real Kafka."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.cli.admin.main import COMMANDS, main
from metaquorum.cli.common.output import json_text, printable, size_text, yaml_text
from metaquorum.runtime.one_line import UNSAFE
from tests.cli.admin.running import Admin, environment
from tests.nodes import (
    PATIENCE_S,
    ROOT,
    Peer,
    free_port,
    heed_interrupts,
    unique,
    wait_until,
)

TIMEOUT_S = PATIENCE_S
COMMAND = [sys.executable, "-m", "metaquorum.cli.admin.main"]


@pytest.fixture
def admin(either: Peer) -> Admin:
    return Admin(MQ_BOOTSTRAP=either.bootstrap)


# The quorum and the workers


def test_the_quorum_says_who_leads_and_how_far_each_voter_is(admin: Admin) -> None:
    admin.create()
    shown = admin.json("quorum")
    assert (shown["leader"], len(shown["cluster_id"])) == (1, 22)
    (voter,) = shown["replicas"]
    assert (voter["node"], voter["role"], voter["lag"]) == (1, "leader", 0)
    assert voter["end_offset"] >= shown["committed_offset"] > 0
    assert voter["heard_at"].startswith("20")
    text = admin("quorum")
    assert re.search(r"^leader +1$", text, re.MULTILINE)
    assert re.search(r"^ +1 +leader .* 0 +\d.* ago", text, re.MULTILINE)


def test_workers_are_listed_and_described(admin: Admin) -> None:
    (row,) = admin.json("workers", "list")
    assert (row["worker"], row["state"], row["why_fenced"]) == (1, "live", None)
    assert row["address"] == admin.environment["MQ_BOOTSTRAP"]
    assert row["metadata_offset"] > 0
    assert (row["epoch"] is not None) == admin.serves("DescribeWorkers")
    name = admin.create("-p", 2)
    described = admin.json("workers", "describe", 1)
    assert described["leads"] >= 2
    assert re.search(r"^state +live$", admin("workers", "describe", 1), re.MULTILINE)
    admin("topics", "delete", name, "--yes")
    admin("workers", "describe", 7, code=1)
    assert admin.errors == (
        "mq-admin: worker 7: the worker is not registered (BROKER_ID_NOT_REGISTERED)\n"
        "  `mq-admin workers list` shows the registered workers\n"
    )


def test_a_cluster_that_lost_nothing_says_so(admin: Admin) -> None:
    if not admin.served("DescribeTruncations", "ledger"):
        return
    assert admin.errors == "No lost records are known.\n"
    assert admin.json("ledger", "--topic", "some", "--lost") == []


def test_health_is_shown_and_a_topic_explained_by_any_cluster(admin: Admin) -> None:
    name = admin.create("-p", 2)
    health = admin.json("cluster", "health")
    assert (health["workers"], health["offline"], health["under_replicated"]) == (1, 0, 0)
    assert health["warnings"] == []
    assert re.search(r"^healthy +yes$", admin("cluster", "health"), re.MULTILINE)
    assert name not in [row["topic"] for row in admin.json("topics", "list", "--unhealthy")]
    (described,) = admin.json("topics", "describe", name, "--health")
    for partition in described["partitions"]:
        assert (partition["min_isr"], partition["troubles"], partition["missing"]) == (1, [], [])
    text = admin("topics", "describe", name, "--health")
    assert re.search(r"^ +1 +1 +1 +1 +1 +healthy +-$", text, re.MULTILINE)
    explained = admin.json("topics", "explain", name)
    assert (explained["replication_factor"], explained["min_insync_replicas"]) == (1, 1)
    levels = {sentence["about"]: sentence["level"] for sentence in explained["sentences"]}
    assert levels["acks=all"] == "bad"
    assert levels["now"] == "good"
    assert "racks" not in levels, "there is one replica"


def test_feature_levels_are_raised_only_as_far_as_every_node_supports_them(admin: Admin) -> None:
    level = admin.json("cluster", "describe")["features"]["metadata.version"]
    assert admin("cluster", "upgrade", f"metadata.version={level}") == (
        f"metadata.version is {level}\n"
    )
    admin("cluster", "upgrade", "metadata.version=32000", code=1)
    assert "INVALID_UPDATE_VERSION" in admin.errors
    for words in ("metadata.version", "metadata.version=", "=2", "metadata.version=32768"):
        admin("cluster", "upgrade", words, code=2)
        assert "is not FEATURE=LEVEL" in admin.errors
    assert admin.json("cluster", "describe")["features"]["metadata.version"] == level


def test_unregistering_asks_and_needs_a_worker_that_is_there(admin: Admin) -> None:
    admin("workers", "unregister", 7, code=2)
    assert "Unregister worker 7?" in admin.errors
    admin("workers", "unregister", 7, "--yes", code=1)
    assert "Broker ID 7 is not currently registered" in admin.errors


def test_a_live_worker_is_not_unregistered(admin: Admin) -> None:
    if not admin.serves("DescribeWorkers"):
        pytest.skip("Kafka unregisters every broker")
    admin("workers", "unregister", 1, "--yes", code=1)
    assert "Worker 1 is alive" in admin.errors
    assert "stop the worker" in admin.errors
    (row,) = admin.json("workers", "list")
    assert row["state"] == "live"


def test_the_only_worker_is_not_drained_nor_removed(admin: Admin) -> None:
    if not admin.served("AlterWorker", "workers", "return", 1):
        return
    assert admin("workers", "return", 1) == "worker 1 is not draining\n"
    admin("workers", "drain", 1, code=1)
    assert "it is the last one that is not draining. Start another worker first" in admin.errors
    name = admin.create("-p", 2)
    admin("workers", "remove", 1, code=2)
    assert "Remove worker 1?" in admin.errors
    admin("workers", "remove", 1, "--yes", code=1)
    assert re.search(r"Worker 1 has \d+ replicas\. 'mq-admin workers drain 1' keeps", admin.errors)
    admin("topics", "delete", name, "--yes")
    for command in ("drain", "return", "remove"):
        more = ("--yes",) if command == "remove" else ()
        admin("workers", command, 7, *more, code=1)
        assert "`mq-admin workers list` shows the registered workers" in admin.errors
        admin("workers", command, -1, *more, code=2)
    (row,) = admin.json("workers", "list")
    assert (row["state"], row["draining"]) == ("live", False)


# Topics


def test_topics_are_created_listed_described_and_deleted(admin: Admin) -> None:
    name = unique("cli")
    created = admin("topics", "create", name, "-p", 3, "-r", 1, "-c", "retention.ms=60000")
    assert created == f"{name} created: 3 partitions, replication factor 1\n"
    admin.wait_for(name)
    assert re.search(rf"^{name} +3 +1 +0$", admin("topics", "list"), re.MULTILINE)
    assert [row["topic"] for row in admin.json("topics", "list", name[:-1] + "*")] == [name]
    described = admin("topics", "describe", name)
    assert re.search(r"^configs +.*retention.ms=60000", described, re.MULTILINE)
    assert re.search(r"^ +2 +1 +0  1 +1 +- +0 +0$", described, re.MULTILINE)
    assert admin("topics", "delete", name, "--yes") == f"{name} deleted\n"
    wait_until(lambda: name not in admin("topics", "list"))
    admin("topics", "describe", name, code=1)
    assert admin.errors.startswith(
        f"mq-admin: topic {name}: there is no such topic (UNKNOWN_TOPIC_OR_PARTITION)\n  "
    )


def test_the_cluster_chooses_what_is_left_out(admin: Admin) -> None:
    (made,) = admin.json("topics", "create", unique("cli"))
    assert (made["partitions"], made["replication_factor"]) == (1, 1)
    assert len(made["id"]) == 22


def test_a_refusal_names_the_reason_the_code_and_the_next_step(admin: Admin) -> None:
    name = admin.create()
    admin("topics", "create", name, code=1)
    assert admin.errors == (
        f"mq-admin: topic {name}: Topic '{name}' already exists. (TOPIC_ALREADY_EXISTS)\n"
        "  `mq-admin topics describe NAME` shows it; `mq-admin topics alter` changes it\n"
    )
    assert "exists already" in admin("topics", "create", name, "--if-not-exists")
    admin("topics", "create", unique("x"), "-r", 99, code=1)
    assert "INVALID_REPLICATION_FACTOR" in admin.errors
    assert "mq-admin cluster describe" in admin.errors


def test_of_several_what_can_be_done_is_done(admin: Admin) -> None:
    one, other = unique("cli"), unique("cli")
    created = admin("topics", "create", one, "not a name", other, code=1)
    assert created.count("created") == 2
    assert "INVALID_TOPIC_EXCEPTION" in admin.errors
    wait_until(lambda: other in admin("topics", "list"))
    deleted = admin("topics", "delete", one, "no-such-topic", other, "--yes", code=1)
    assert deleted.count("deleted") == 2
    assert "there is no such topic" in admin.errors or "does not host" in admin.errors
    admin("topics", "delete", "no-such-topic", "--if-exists", "--yes")


def test_a_dry_run_changes_nothing(admin: Admin) -> None:
    name = unique("cli")
    assert "would be created" in admin("topics", "create", name, "--dry-run")
    assert name not in admin("topics", "list")


def test_what_destroys_is_not_done_unasked(admin: Admin) -> None:
    name = admin.create()
    for command in (["topics", "delete", name], ["records", "delete", name, "--before", "end"]):
        admin(*command, code=2)
        assert admin.errors.startswith(
            "mq-admin: nothing was changed: no terminal for the question"
        )
        assert "--yes" in admin.errors
    assert name in admin("topics", "list")


def test_partitions_are_added(admin: Admin) -> None:
    name = admin.create()
    if admin.served("CreatePartitions", "topics", "alter", name, "--partitions", 3):
        wait_until(lambda: len(admin.json("topics", "describe", name)[0]["partitions"]) == 3)
        admin("topics", "alter", name, "--partitions", 2, code=1)
        assert "partitions can only be added" in admin.errors


# Configs


def test_configs_are_set_read_and_taken_back(admin: Admin) -> None:
    name = admin.create()
    topic = ("topic", name)
    if not admin.served("IncrementalAlterConfigs", "configs", "set", *topic, "retention.ms=777"):
        return
    wait_until(lambda: admin("configs", "get", *topic, "retention.ms") == "777\n")
    rows = {row["config"]: row for row in admin.json("configs", "describe", *topic)}
    assert rows["retention.ms"]["source"] == "dynamic-topic"
    assert rows["retention.ms"]["synonyms"][0]["value"] == "777"
    text = admin("configs", "describe", *topic, "--synonyms")
    assert re.search(r"^retention.ms +777 +dynamic-topic +dynamic-topic:retention.ms=777", text, 8)
    admin("configs", "set", *topic, "retention.ms=abc", code=1)
    assert "Invalid value abc" in admin.errors
    assert "(INVALID_CONFIG)" in admin.errors
    admin("configs", "unset", *topic, "retention.ms")
    wait_until(lambda: admin("configs", "get", *topic, "retention.ms") == "604800000\n")
    admin("topics", "alter", name, "-c", "retention.ms=5", "--dry-run")
    assert admin("configs", "get", *topic, "retention.ms") == "604800000\n"
    admin("topics", "alter", name, "-c", "retention.ms=5")
    wait_until(lambda: admin("configs", "get", *topic, "retention.ms") == "5\n")


def test_lists_are_added_to_and_taken_from(admin: Admin) -> None:
    name = admin.create("-c", "cleanup.policy=delete")

    def policy() -> set[str]:
        return set(admin("configs", "get", "topic", name, "cleanup.policy").strip().split(","))

    admin("configs", "set", "topic", name, "cleanup.policy+=compact")
    wait_until(lambda: policy() == {"delete", "compact"})
    admin("configs", "set", "topic", name, "cleanup.policy-=delete")
    wait_until(lambda: policy() == {"compact"})


def test_defaults_and_their_meaning_are_told_on_request(admin: Admin) -> None:
    name = admin.create()
    few = admin.json("configs", "describe", "topic", name)
    rows = admin.json("configs", "describe", "topic", name, "--all", "--docs")
    assert len(rows) > len(few)
    (row,) = [row for row in rows if row["config"] == "retention.ms"]
    assert (row["value"], row["source"], row["type"]) == ("604800000", "default", "long")
    assert len(row["documentation"]) > 10


def test_a_node_s_configs(admin: Admin) -> None:
    rows = admin.json("configs", "describe", "broker", 1, "--all")
    assert len(rows) > 10
    admin("configs", "describe", "broker", 77, code=1)
    assert "there is no such node; the nodes are: 1" in admin.errors
    admin("configs", "describe", "broker", "one", code=1)
    assert "the name of a node must be its node id" in admin.errors


def test_a_config_that_is_not_there(admin: Admin) -> None:
    name = admin.create()
    admin("configs", "get", "topic", name, "no.such.config", code=1)
    assert "has no config no.such.config" in admin.errors
    admin("configs", "describe", "topic", "no-such-topic", code=1)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in admin.errors


# Records


def test_records_go_in_and_come_out(admin: Admin) -> None:
    name = admin.create("-p", 3)
    sent = admin(
        *("produce", name, "-K", ":", "-Z", "", "-H", "h=1", "--codec", "zstd"),
        stdin="a:1\nb:2\na:\n",
    )
    assert [line.split()[2] for line in sent.splitlines()[1:]] == ["2", "1"] or "3" in sent
    out = admin("consume", name, "--format", r"{key}={value:json}\t{headers}\n")
    assert sorted(out.splitlines()) == ['a="1"\th=1', "a=null\th=1", 'b="2"\th=1']
    assert sorted(admin("consume", name).splitlines()) == ["", "1", "2"]


def test_json_out_is_json_in(admin: Admin) -> None:
    source, target = admin.create(), admin.create()
    lines = [
        {"value": "text", "key": "k", "headers": {"h": "1"}, "timestamp": 1_700_000_000_000},
        {"value": None, "key": "k"},
        {"value_base64": "/w==", "key_base64": "AP8="},
        {"value": {"n": [1, 2]}, "headers": [{"key": "h", "value": None}]},
    ]
    stdin = "".join(json.dumps(line) + "\n" for line in lines)
    (sent,) = admin.json("produce", source, "--input", "json", stdin=stdin)
    assert (sent["records"], sent["first_offset"]) == (4, 0)
    out = admin("consume", source, "-o", "json")
    records = [json.loads(line) for line in out.splitlines()]
    assert records[0]["timestamp"] == 1_700_000_000_000
    assert records[0]["headers"] == [{"key": "h", "value": "1"}]
    assert (records[2]["value_base64"], records[2]["key_base64"]) == ("/w==", "AP8=")
    assert records[3]["value"] == '{"n":[1,2]}'
    admin("produce", target, "--input", "json", stdin=out)
    copied = [json.loads(line) for line in admin("consume", target, "-o", "json").splitlines()]
    assert copied == [record | {"topic": target} for record in records]


def test_where_reading_begins_and_ends(admin: Admin) -> None:
    name = admin.create()
    lines = "".join(
        json.dumps({"value": str(n), "timestamp": 1_600_000_000_000 + n * 1000}) + "\n"
        for n in range(10)
    )
    admin("produce", name, "--input", "json", stdin=lines)

    def read(*options: object) -> str:
        return "".join(admin("consume", name, *options).split())

    assert read() == read("--from", "beginning") == "0123456789"
    assert read("--from", 7) == read("--from", "-3") == "789"
    assert read("--from", "end") == ""
    assert read("--limit", 2, "--from", 4) == "45"
    assert read("--from-time", "1600000008000") == "89"
    assert read("--from-time", "2020-09-13T12:26:45Z") == "56789"
    assert read("--from-time", "1h") == ""
    assert read("-p", 0) == "0123456789"
    admin("consume", name, "--from", 11, code=1)
    assert "the partition begins at 0 and ends before 10 (OFFSET_OUT_OF_RANGE)" in admin.errors
    admin("consume", name, "-p", 5, code=1)
    assert "there is no such partition" in admin.errors


def test_records_are_deleted(admin: Admin) -> None:
    name = admin.create()
    admin("produce", name, stdin="a\nb\nc\nd\n")
    delete = ("records", "delete", name, "--yes", "--before")
    if admin.served("DeleteRecords", *delete, 1):
        assert admin("consume", name).split() == ["b", "c", "d"]
        assert admin.json(*delete, "end")[0]["start_offset"] == 4
        admin("records", "delete", name, "--yes", "--before-time", "1h")


def test_records_of_a_mistaken_form_are_refused_with_their_number(admin: Admin) -> None:
    name = admin.create()
    for stdin, options, text in (
        ("k:v\nno key\n", ["-K", ":"], "record 2: the key separator ':' is missing"),
        ('{"value": 1}\n{"valeu": 2}', ["--input", "json"], "record 2: 'valeu' is unknown"),
        ("nonsense", ["--input", "json"], "record 1: not JSON"),
        ('{"value_base64": "?"}', ["--input", "json"], "record 1: value_base64 is not base64"),
    ):
        admin("produce", name, *options, stdin=stdin, code=2)
        assert text in admin.errors


def test_other_separators(admin: Admin) -> None:
    name = admin.create()
    admin("produce", name, "--separator", r"\0", stdin="one\ntwo\0three")
    assert admin("consume", name, "--format", r"{value}\0") == "one\ntwo\0three\0"


def test_a_quota_delays_a_producer_and_does_not_fail_it(admin: Admin) -> None:
    """The quota of a client id lets 11 s of its rate through at once, and then a second later."""
    name, client = admin.create(), unique("slow")
    admin("quotas", "set", "--client-id", client, "producer_byte_rate=10000")
    quota = lambda: admin.json("quotas", "describe", "--client-id", client)  # noqa: E731
    wait_until(quota)
    records = "".join(f"{'x' * 40_000}\n" for _ in range(4))
    batches = ("--batch-bytes", 40_100, "--client-id", client)
    (row,) = admin.json("produce", name, *batches, "--timeout", 0.9, stdin=records)
    assert row["records"] == 4
    assert re.search(r"Produce is throttled for \d\.\d s by a quota", admin.errors)
    assert f"`mq-admin quotas explain --client-id {client}` shows it" in admin.errors


def test_a_producer_that_fails_says_what_was_acknowledged(admin: Admin) -> None:
    name = admin.create()
    records = f"a\nb\n{'x' * 2_000_000}\nc\n"
    out = admin("produce", name, "--batch-bytes", 100, stdin=records, code=1)
    assert "2 of the 4 records read were acknowledged" in admin.errors
    assert f"`mq-admin consume {name} --from -2` shows its end" in admin.errors
    assert re.search(rf"{name} +0 +2 +0", out)
    assert admin("consume", name) == "a\nb\n"


def test_a_follower_sees_what_comes_and_ends_when_told(either: Peer, admin: Admin) -> None:
    name = admin.create()
    process = subprocess.Popen(
        [*COMMAND, "-b", either.bootstrap, "consume", name, "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment(),
        preexec_fn=heed_interrupts,
    )
    assert process.stdout is not None
    try:
        for value in ("first", "second"):
            admin("produce", name, stdin=value)
            assert process.stdout.readline().decode() == value + "\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (0, b"")


def test_records_leave_as_they_come_in(either: Peer, admin: Admin) -> None:
    name = admin.create()
    process = subprocess.Popen(
        [*COMMAND, "-b", either.bootstrap, "produce", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=environment(),
    )
    assert process.stdin is not None
    try:
        process.stdin.write(b"early\n")
        process.stdin.flush()
        wait_until(lambda: admin("consume", name) == "early\n")
        process.stdin.write(b"late\n")
        out, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert admin("consume", name) == "early\nlate\n"
    assert out.split()[-2:] == [b"2", b"0"]


# The cluster


def test_the_cluster_is_described(either: Peer, admin: Admin) -> None:
    host, port = either.bootstrap.split(":")
    data = admin.json("cluster", "describe")
    assert data["nodes"] == [
        {"node": 1, "host": host, "port": int(port), "rack": None, "controller": True}
    ]
    text = admin("cluster", "describe")
    assert data["cluster_id"] in text
    assert re.search(rf"^ +1  {host} +{port}  - +yes$", text, re.MULTILINE)
    assert re.search(r"^ +3  Metadata +0-13", admin("cluster", "apis"), re.MULTILINE)
    assert admin("cluster", "apis", "--node", 1) == admin("cluster", "apis")


def test_the_disks_are_described(admin: Admin) -> None:
    name = admin.create()
    admin("produce", name, stdin="v" * 2000)
    if admin.served("DescribeLogDirs", "log-dirs"):
        (log_dir,) = admin.json("log-dirs", "--topic", name)
        assert log_dir["size_bytes"] > 2000
        assert [replica["topic"] for replica in log_dir["replicas"]] == [name]
        assert re.search(
            rf"{name} +0 +2\.. KiB +0$", admin("log-dirs", "--partitions"), re.MULTILINE
        )


# Which cluster


def write_profiles(folder: Path, text: str) -> dict[str, str]:
    file = folder / "metaquorum" / "mq-admin.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return {"XDG_CONFIG_HOME": str(folder)}


def test_profiles_and_environment_say_which_cluster(node: Peer, tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    home = write_profiles(
        tmp_path,
        f'default = "good"\n[profiles.good]\nbootstrap = "{node.bootstrap}"\noutput = "json"\n'
        f'[profiles.bad]\nbootstrap = "{nobody}"\ntimeout = 5\n',
    )
    assert json.loads(Admin(**home)("topics", "list")) is not None
    admin = Admin(**home)
    admin("--profile", "bad", "topics", "list", code=3)
    assert f"{nobody} (profile bad (--profile))" in admin.errors
    admin("topics", "list", "--profile", "bad", code=3)
    Admin(**home, MQ_PROFILE="bad")("topics", "list", code=3)
    Admin(**home, MQ_BOOTSTRAP=nobody)("topics", "list", code=3)
    Admin(**home, MQ_BOOTSTRAP=nobody)("topics", "list", "--profile", "good")
    Admin(**home, MQ_BOOTSTRAP=nobody)("-b", node.bootstrap, "topics", "list")
    admin("-b", nobody, "topics", "list", "-b", node.bootstrap)
    assert "bad" in admin("profiles", "-o", "text")
    admin("topics", "list", "--profile", "none", code=2)
    assert "profile 'none' does not exist in" in admin.errors
    assert "profiles: good, bad" in admin.errors


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("=", "is not TOML"),
        ("x = 1", "x is unknown"),
        ('default = "a"', "the default profile 'a' does not exist"),
        ("[profiles.a]\n", "bootstrap is missing"),
        ("[profiles.a]\nbootstrap = 1", "bootstrap must be a string"),
        ('[profiles.a]\nbootstrap = "a"\ncolour = 1', "colour is unknown; the keys are"),
        ('[profiles.a]\nbootstrap = "a"\noutput = "xml"', "output must be one of"),
    ],
)
def test_mistakes_in_profiles_get_a_sentence(tmp_path: Path, text: str, problem: str) -> None:
    admin = Admin(**write_profiles(tmp_path, text))
    admin("topics", "list", code=2)
    assert problem in admin.errors


def test_who_cannot_be_reached_is_named() -> None:
    address = f"127.0.0.1:{free_port()}"
    admin = Admin(MQ_BOOTSTRAP=address)
    admin("topics", "list", code=3)
    assert admin.errors == (
        f"mq-admin: no broker could be reached: {address}: Connection refused\n"
        f"  the address was {address} (MQ_BOOTSTRAP); --bootstrap, MQ_BOOTSTRAP or a profile sets "
        "another\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["topics", "create"],
        ["topics", "alter", "t"],
        ["topics", "create", "t", "-c", "novalue"],
        ["topics", "create", "t", "-p", "0"],
        ["configs", "describe", "planet", "earth"],
        ["configs", "set", "topic", "t", "novalue"],
        ["records", "delete", "t"],
        ["records", "delete", "t", "--before", "x"],
        ["records", "delete", "t", "--before-time", "yesterday"],
        ["consume", "t", "--from", "x"],
        ["consume", "t", "--from", "1", "--from-time", "1h"],
        ["consume", "t", "--format", "{nothing}"],
        ["consume", "t", "--format", "{value:loud}"],
        ["consume", "t", "--format", "{value", "-o", "text"],
        ["produce", "t", "-k", "a", "-K", ":"],
        ["produce", "t", "-H", "novalue"],
        ["topics", "list", "-b", "host:port"],
        ["topics", "list", "--timeout", "0"],
        ["completion", "tcsh"],
    ],
    ids=" ".join,
)
def test_mistakes_end_with_2(arguments: list[str], node: Peer) -> None:
    admin = Admin(MQ_BOOTSTRAP=node.bootstrap)
    assert admin(*arguments, code=2) == ""
    assert "Traceback" not in admin.errors


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["topcs"], "Did you mean 'topics'?"),
        (["quotas", "simulat"], "Did you mean 'simulate'?"),
        (["zzz"], "No such command 'zzz'.\n"),
    ],
)
def test_a_command_misspelt_is_told_the_closest(words: list[str], hint: str) -> None:
    admin = Admin()
    assert admin(*words, code=2) == ""
    assert hint in admin.errors


# Output as text


def commands() -> list[list[str]]:
    """Return the words of every command."""
    found = []
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        if isinstance(command, click.Group):
            found += [[name, more] for more in command.list_commands(context)]
        else:
            found.append([name])
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_help_with_examples(command: list[str]) -> None:
    text = Admin()(*command, "--help")
    if command != ["profiles"]:
        assert re.search(r"Examples:\n( +.*mq-admin .*\n)+", text)
    assert max(map(len, text.splitlines())) <= 100


def test_help_lists_all_commands_as_they_introduce_themselves() -> None:
    text = " ".join(Admin()("--help").split())
    for name, place in COMMANDS.items():
        assert f"{name} {place.short_help}" in text
        command = main.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        assert command.short_help == place.short_help


def on_terminal(arguments: list[str], answer: bytes = b"", **more: str) -> tuple[int, str]:
    """Run on a terminal; return the exit code and the output."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 90, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        cwd=ROOT,
        env=environment(TERM="xterm", **more),
    )
    os.close(follower)
    seen = b""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if not select.select([leader], [], [], 1)[0]:
            continue
        try:
            data = os.read(leader, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data
        if answer and b"[y/N]" in seen:
            os.write(leader, answer)
            answer = b""
    os.close(leader)
    return process.wait(TIMEOUT_S), seen.decode()


def test_colours_are_for_terminals_that_want_them(node: Peer) -> None:
    name = Admin(MQ_BOOTSTRAP=node.bootstrap).create()
    _, seen = on_terminal(["-b", node.bootstrap, "topics", "list"])
    assert "\x1b[1m" in seen
    assert name in seen
    _, seen = on_terminal(["-b", node.bootstrap, "topics", "list"], NO_COLOR="1")
    assert not re.search(r"\x1b\[\d*(3\d|9\d)", seen)
    assert name in seen


def test_people_are_asked_before_something_is_destroyed(node: Peer) -> None:
    admin = Admin(MQ_BOOTSTRAP=node.bootstrap)
    name = admin.create()
    delete = ["-b", node.bootstrap, "topics", "delete", name]
    code, seen = on_terminal(delete, b"n\n")
    assert code == 1
    assert f"Delete topic {name} with all records? [y/N]" in seen
    assert "Nothing was changed." in seen
    assert name in admin("topics", "list")
    code, seen = on_terminal(delete, b"y\n")
    assert (code, f"{name} deleted" in seen) == (0, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, tmp_path: Path) -> None:
    script = Admin()("completion", shell)
    assert "mq-admin" in script
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed: its script was printed, not checked")
    file = tmp_path / "script"
    file.write_text(script)
    subprocess.run([shell, "-n", file], check=True)


def completions(node: Peer, words: str, word: int) -> list[str]:
    done = subprocess.run(
        COMMAND,
        cwd=ROOT,
        env=environment(
            MQ_BOOTSTRAP=node.bootstrap,
            _MQ_ADMIN_COMPLETE="bash_complete",
            COMP_WORDS=words,
            COMP_CWORD=str(word),
        ),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.split()]


def test_commands_options_and_topics_are_completed(node: Peer) -> None:
    name = Admin(MQ_BOOTSTRAP=node.bootstrap).create()
    assert completions(node, "mq-admin co", 1) == ["configs", "consume", "completion"]
    assert completions(node, "mq-admin topics d", 2) == ["delete", "describe"]
    assert "--replication-factor" in completions(node, "mq-admin topics create t --r", 4)
    assert completions(node, f"mq-admin topics describe {name[:-1]}", 3) == [name]
    assert completions(node, "mq-admin -b 127.0.0.1:1 topics describe x", 5) == []


# Prints the number of function calls, also of those in C, on stderr.
COUNTED = """
import sys
count = 0
def counted(frame, event, argument):
    global count
    count += 1
sys.setprofile(counted)
{}
sys.setprofile(None)
print(count, file=sys.stderr)
"""


def call_count(program: str) -> int:
    """Return the number of function calls of a program whose modules are compiled."""
    command = [sys.executable, "-c", COUNTED.format(program)]
    for _ in range(2):
        done = subprocess.run(
            command, check=True, cwd=ROOT, env=environment(), capture_output=True, text=True
        )
    return int(done.stderr.split()[-1])


def test_the_first_output_needs_little_work(node: Peer) -> None:
    """Compared with the import of some standard modules."""
    name = Admin(MQ_BOOTSTRAP=node.bootstrap).create()
    words = ["-b", node.bootstrap, "topics", "describe", name]
    command = f"from metaquorum.cli.admin.main import main; main({words}, standalone_mode=False)"
    usual = call_count("import click, dataclasses, json, socket, ssl, tomllib")
    assert call_count(command) < 2.75 * usual


def test_no_loop_and_no_drawing_are_loaded_where_none_is_needed(node: Peer) -> None:
    program = (
        "import sys; from metaquorum.cli.admin.main import main\n"
        f"main(['-b', '{node.bootstrap}', 'topics', 'list'], standalone_mode=False)\n"
        "late = {'trio', 'rich', 'asyncio', 'metaquorum.cli.admin.configs'}\n"
        "assert not late & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, env=environment())


# Output for programs


def test_yaml_is_what_was_to_be_said() -> None:
    data = {
        "a": [],
        "list": [1, None, True, {"x": "y", "deep": [{"z": "1"}, [2, 3]]}],
        "Weird: key": 'line\nbreak \x7f\u2028 ü "quoted"',
        "no": {"empty": {}},
    }
    text = yaml_text(data)
    assert text.splitlines() == [
        "a: []",
        "list:",
        "- 1",
        "- null",
        "- true",
        '- x: "y"',
        "  deep:",
        '  - z: "1"',
        "  - - 2",
        "    - 3",
        r"'Weird: key': " + r'"line\nbreak \x7F\L ü \"quoted\""',
        "'no':",
        "  empty: {}",
    ]
    assert yaml.safe_load(text) == data


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["", "1", "no", "null", "2026-01-01", "1e3", "- a", "#", "x" * 300]
)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(DATA, max_size=3) | st.dictionaries(TEXTS, DATA, max_size=3))
def test_yaml_is_read_as_it_was_meant(data: object) -> None:
    text = yaml_text(data)
    assert yaml.safe_load(text) == data
    assert text.endswith("\n")


def test_yaml_repeats_what_is_there_twice_and_keeps_the_order() -> None:
    same = {"b": 1, "a": 2}
    assert yaml_text([same, same]) == "- b: 1\n  a: 2\n- b: 1\n  a: 2\n"


def test_yaml_of_a_list_and_of_nothing(node: Peer) -> None:
    admin = Admin(MQ_BOOTSTRAP=node.bootstrap)
    name = admin.create()
    assert f'- topic: "{name}"\n  id: "' in admin("topics", "list", name, "-o", "yaml")
    assert admin("topics", "list", "no-such-*", "-o", "yaml") == "[]\n"
    assert admin("topics", "list", "no-such-*", "-o", "json") == "[]\n"
    assert admin("topics", "list", "no-such-*") == ""


def test_a_terminal_is_not_obeyed_by_what_brokers_say() -> None:
    assert printable("a\x1b[31mb\n\u009b") == r"a\x1b[31mb\x0a\x9b"


def test_json_has_no_character_that_a_terminal_would_interpret() -> None:
    data = {"group": "a\x1b[31mb\n\u009b\u202e\x7fü"}
    text = json_text(data)
    assert json.loads(text) == data
    assert not UNSAFE.search(text.replace("\n", ""))
    assert "ü" in text


def test_sizes_for_people() -> None:
    sizes = [-1, 0, 1023, 1024, 1536, 5 << 30]
    assert [size_text(size) for size in sizes] == [
        "-",
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "5.0 GiB",
    ]
