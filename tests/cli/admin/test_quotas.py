"""mq-admin quotas, with metaquorum and a real Kafka."""

import json
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from metaquorum.cli.admin.quotas.entities import amount_text, parse_amount
from metaquorum.client.producer import Producer, ProducerRecord
from metaquorum.client.socket_transport import BlockingAdmin, BlockingProducer, connect
from metaquorum.client.values import NewTopic
from tests.cli.admin.running import Admin
from tests.conftest import NewNode
from tests.nodes import PATIENCE_S, Peer, unique, wait_until


@pytest.fixture
def admin(either: Peer) -> Admin:
    return Admin(MQ_BOOTSTRAP=either.bootstrap)


@pytest.fixture
def user() -> str:
    return unique("user")


def shown(admin: Admin, *whom: object) -> dict[str, Any]:
    """Return the quotas that are set for exactly this entity."""
    found: dict[str, Any] = admin.json("quotas", "describe", *whom)["quotas"]
    return found


def in_force(admin: Admin, quotas: dict[str, Any], *whom: object) -> None:
    """Wait until Kafka's brokers have applied the change, which it acknowledges earlier."""
    wait_until(lambda: shown(admin, *whom) == quotas, what=f"{whom}: {quotas}")


def test_quotas_are_set_read_and_taken_away(admin: Admin, user: str) -> None:
    whom = ("--user", user)
    said = admin("quotas", "set", *whom, "producer_byte_rate=1MiB", "request_percentage=12.5")
    assert said == f"user={user} altered\n"
    in_force(admin, {"producer_byte_rate": 1048576, "request_percentage": 12.5}, *whom)
    assert admin("quotas", "get", *whom, "producer_byte_rate") == "1048576\n"
    assert admin.json("quotas", "get", *whom, "request_percentage") == {
        "entity": {"user": user},
        "quotas": {"request_percentage": 12.5},
    }
    text = admin("quotas", "describe", *whom)
    assert re.search(r"^producer_byte_rate +1 MiB/s$", text, re.MULTILINE)
    assert re.search(r"^request_percentage +12.5%$", text, re.MULTILINE)
    assert re.search(r"^client-id +-$", text, re.MULTILINE)
    admin("quotas", "delete", *whom, "producer_byte_rate", "--yes")
    in_force(admin, {"request_percentage": 12.5}, *whom)
    admin("quotas", "get", *whom, "producer_byte_rate", code=1)
    assert admin.errors.startswith(f"mq-admin: user={user} has no quota producer_byte_rate\n")
    admin("quotas", "delete", *whom, "--yes")
    in_force(admin, {}, *whom)
    admin("quotas", "delete", *whom)
    assert admin.errors == f"No quota is set for user={user}.\n"


def test_a_default_is_none_of_the_names(admin: Admin, user: str) -> None:
    pair = ("--user", user, "--default-client-id")
    named = ("--user", user, "--client-id", "<default>")
    admin("quotas", "set", *pair, "consumer_byte_rate=1000")
    in_force(admin, {"consumer_byte_rate": 1000}, *pair)
    assert shown(admin, *named) == {}
    assert shown(admin, "--user", user) == {}
    (listed,) = admin.json("quotas", "list", "--user", user)
    assert listed["entity"] == {"user": user, "client-id": None}
    assert admin.json("quotas", "list", "--user", user, "--strict") == []
    assert admin.json("quotas", "list", "--user", user, "--any-client-id", "--strict") == [listed]
    assert re.search(
        rf"^{user} +<default> +- +consumer_byte_rate +1000 +1 kB/s$",
        admin("quotas", "list", "--user", user),
        re.MULTILINE,
    )
    admin("quotas", "delete", *pair, "--yes")
    in_force(admin, {}, *pair)


def test_what_is_listed_can_be_set(admin: Admin, user: str, tmp_path: Path) -> None:
    admin("quotas", "set", "--user", user, "producer_byte_rate=1000")
    admin("quotas", "set", "--user", user, "--client-id", "c", "request_percentage=0.5")
    in_force(admin, {"request_percentage": 0.5}, "--user", user, "--client-id", "c")
    listed = admin.json("quotas", "list", "--user", user)
    assert len(listed) == 2
    file = tmp_path / "quotas.yaml"
    file.write_text(admin("quotas", "list", "--user", user, "-o", "yaml"))
    for row in listed:
        whom = [part for kind, name in row["entity"].items() for part in (f"--{kind}", name)]
        admin("quotas", "delete", *whom, "--yes")
        in_force(admin, {}, *whom)
    assert "would be altered" in admin("quotas", "set", "--file", file, "--dry-run")
    assert admin.json("quotas", "list", "--user", user) == []
    admin("quotas", "set", "--file", file)
    wait_until(lambda: admin.json("quotas", "list", "--user", user) == listed)
    admin("quotas", "set", "--file", "-", stdin=json.dumps(listed))
    assert admin.json("quotas", "list", "--user", user) == listed


def of(user: str, quotas: str) -> str:
    return f"- entity: {{user: {user}}}\n  quotas: {{{quotas}}}\n"


def test_a_file_is_compared_and_applied(admin: Admin, user: str, tmp_path: Path) -> None:
    other = unique("user")
    admin("quotas", "set", "--user", user, "producer_byte_rate=1000", "request_percentage=5")
    in_force(admin, {"producer_byte_rate": 1000, "request_percentage": 5}, "--user", user)
    file = tmp_path / "quotas.yaml"
    file.write_text(of(user, "producer_byte_rate: 2000") + of(other, "consumer_byte_rate: 1MiB"))
    rows = admin.json("quotas", "diff", "--file", file)
    assert {(row["action"], row["quota"], row["before"], row["after"]) for row in rows} >= {
        ("change", "producer_byte_rate", 1000, 2000),
        ("remove", "request_percentage", 5, None),
        ("add", "consumer_byte_rate", None, 1048576),
    }
    assert len(admin.json("quotas", "diff", "--file", file, "--keep-others")) == 2
    admin("quotas", "diff", "--file", file, "--exit-code", code=1)

    text = admin("quotas", "apply", "--file", file, "--dry-run")
    assert re.search(rf"^change +user={user} +producer_byte_rate +1 kB/s +2 kB/s$", text, 8)
    assert text.endswith("Nothing was changed; the cluster accepts all changes.\n")
    admin("quotas", "apply", "--file", file, code=2)
    assert "no terminal for the question: Remove" in admin.errors
    assert shown(admin, "--user", user) == {"producer_byte_rate": 1000, "request_percentage": 5}
    admin("quotas", "apply", "--file", file, "--keep-others")
    in_force(admin, {"producer_byte_rate": 2000, "request_percentage": 5}, "--user", user)
    in_force(admin, {"consumer_byte_rate": 1048576}, "--user", other)
    assert admin("quotas", "apply", "--file", file, "--keep-others") == "No quota differs.\n"

    file.write_text(of(user, "producer_byte_rate: 3000") + of(other, "no_such_rate: 1"))
    admin("quotas", "apply", "--file", file, "--keep-others", code=1)
    assert admin.errors.endswith("Nothing was changed.\n")
    assert shown(admin, "--user", user)["producer_byte_rate"] == 2000
    for each in (user, other):
        admin("quotas", "delete", "--user", each, "--yes")


def test_what_a_file_does_not_name_goes(node: Peer, user: str, tmp_path: Path) -> None:
    admin = Admin(MQ_BOOTSTRAP=node.bootstrap)  # other tests may use the same Kafka
    admin("quotas", "set", "--user", user, "producer_byte_rate=1000", "request_percentage=5")
    file = tmp_path / "quotas.json"
    file.write_text(json.dumps([{"entity": {"user": user}, "quotas": {"request_percentage": 5}}]))
    assert admin("quotas", "apply", "--file", file, "--yes").endswith("Applied.\n")
    in_force(admin, {"request_percentage": 5}, "--user", user)
    assert len(admin.json("quotas", "list")) == 1
    assert admin("quotas", "apply", "--file", file) == "No quota differs.\n"
    assert admin("quotas", "apply", "--file", "-", "--yes", stdin="[]").endswith("Applied.\n")
    wait_until(lambda: admin.json("quotas", "list") == [])


def test_addresses_have_quotas_of_their_own(admin: Admin) -> None:
    whom = ("--ip", "10.9.8.7")
    admin("quotas", "set", *whom, "connection_creation_rate=7")
    in_force(admin, {"connection_creation_rate": 7}, *whom)
    assert {"ip": "10.9.8.7"} in [r["entity"] for r in admin.json("quotas", "list", "--any-ip")]
    admin("quotas", "delete", *whom, "--yes")
    in_force(admin, {}, *whom)


def test_what_the_cluster_refuses_is_told(admin: Admin, user: str) -> None:
    admin("quotas", "set", "--user", user, "no_such_rate=5", code=1)
    assert "Invalid configuration key no_such_rate (INVALID_REQUEST)" in admin.errors
    admin("quotas", "set", "--user", user, "--ip", "10.0.0.1", "producer_byte_rate=5", code=1)
    assert "INVALID_REQUEST" in admin.errors
    assert shown(admin, "--user", user) == {}


def test_explain_shows_the_rules_in_order_and_which_applies(admin: Admin, user: str) -> None:
    admin("quotas", "set", "--user", user, "producer_byte_rate=3000")
    admin("quotas", "set", "--user", user, "--default-client-id", "consumer_byte_rate=2000")
    admin("quotas", "set", "--user", user, "--client-id", "c", "consumer_byte_rate=1000")
    in_force(admin, {"consumer_byte_rate": 1000}, "--user", user, "--client-id", "c")

    def explained(*whom: object) -> dict[str, Any]:
        shown = admin.json("quotas", "explain", "--user", user, *whom)
        assert shown["live"] == admin.serves("DescribeQuotaUse")
        return {row["quota"]: row for row in shown["quotas"]}

    rows = explained("--client-id", "c")
    assert [rows["producer_byte_rate"][key] for key in ("applies", "value")] == [3, 3000]
    assert rows["producer_byte_rate"]["shared_by"] == {"user": user, "client_id": None}
    assert [rows["consumer_byte_rate"][key] for key in ("applies", "value")] == [1, 1000]
    assert [rule["value"] for rule in rows["consumer_byte_rate"]["rules"][:3]] == [1000, 2000, None]
    assert [rule["entity"] for rule in rows["consumer_byte_rate"]["rules"]] == [
        {"user": user, "client-id": "c"},
        {"user": user, "client-id": None},
        {"user": user},
        {"user": None, "client-id": "c"},
        {"user": None, "client-id": None},
        {"user": None},
        {"client-id": "c"},
        {"client-id": None},
    ]
    assert rows["request_percentage"]["applies"] is None
    assert explained("--client-id", "other")["consumer_byte_rate"]["applies"] == 2
    nameless = explained()["consumer_byte_rate"]
    assert (nameless["applies"], nameless["rules"][0]["entity"]) == (2, None)

    text = admin("quotas", "explain", "--user", user, "--client-id", "c", "--ip", "10.3.2.1")
    assert (
        f"consumer_byte_rate: 1 kB/s by rule 1, user={user}, client-id=c; "
        f"shared by all clients with user {user} and client id c\n"
    ) in text
    assert re.search(rf"^-> +2 +user={user}, client-id=<default> +2000$", text, 8) is None
    assert re.search(rf"^- +2 +user={user}, client-id=<default> +2000$", text, 8)
    assert "request_percentage: no rule has a value: not limited\n" in text
    assert "connection_creation_rate: " in text
    errors = admin.errors
    if not admin.serves("DescribeQuotaUse"):
        assert errors.startswith("This cluster does not report the usage of quotas")
        admin("quotas", "top", code=1)
        assert "does not serve DescribeQuotaUse" in admin.errors
    for more in ((), ("--default-client-id",), ("--client-id", "c")):
        admin("quotas", "delete", "--user", user, *more, "--yes")


def test_of_what_the_controller_counts_there_is_one_row_for_all_workers(node: Peer) -> None:
    admin, client_id = Admin(MQ_BOOTSTRAP=node.bootstrap), unique("client")
    admin("quotas", "set", "--client-id", client_id, "controller_mutation_rate=0.001")
    with connect(node.bootstrap, client_id=client_id) as cluster:
        BlockingAdmin(cluster).create_topics([NewTopic(unique("t"), 1, 1)])
    uses = admin.json("quotas", "top")["uses"]
    (use,) = [use for use in uses if use["client_id"] == client_id]
    assert (use["worker"], use["quota"]) == (None, "controller_mutation_rate")
    assert use["utilization"] > 1
    assert re.search(rf"^all +controller_mutation_rate .* {client_id}", admin("quotas", "top"), 8)
    admin("quotas", "delete", "--client-id", client_id, "--yes")


def test_what_is_used_now_and_who_is_muted_is_told(start_node: NewNode) -> None:
    node = start_node({"quota.window.size.seconds": 60})  # the use of the last eleven minutes
    admin, client_id = Admin(MQ_BOOTSTRAP=node.bootstrap), unique("client")
    whom = ("--client-id", client_id)
    topic = admin.create()
    admin("quotas", "set", *whom, "producer_byte_rate=10")
    with connect(node.bootstrap, client_id=client_id) as cluster:
        BlockingProducer(Producer(cluster)).send(topic, [ProducerRecord(bytes(30_000))])
        times = cluster.throttle_times["Produce"]
        assert (times.answers, times.delayed) == (1, 1)
        assert 2_300_000 < times.max_ms == times.average_ms < 2_500_000
        assert cluster.throttle_times["Metadata"].max_ms == 0
        shown = admin.json("quotas", "explain", *whom, "--bytes", "10kB")
        (row,) = [row for row in shown["quotas"] if row["quota"] == "producer_byte_rate"]
        (use,) = row["workers"]
        assert (row["applies"], use["worker"], use["muted_connections"]) == (7, 1, 1)
        assert use["used"] > 30_000
        assert 0 < use["muted_longest_s"] <= use["throttle_longest_s"]
        assert 2300 < use["throttle_longest_s"] < 2500
        assert 0 < use["delay_s"] <= use["throttle_longest_s"]
        assert use["next_delay_s"] == pytest.approx(use["delay_s"] + 1000, abs=50)
        assert re.search(
            r"^ +1 +\S+ kB in .* 1, up to \d+\.\d s$", admin("quotas", "explain", *whom), 8
        )

        top = admin.json("quotas", "top")
        (use,) = [use for use in top["uses"] if use["client_id"] == client_id]
        assert (use["quota"], use["user"], use["throttle_count"]) == ("producer_byte_rate", None, 1)
        assert use["utilization"] > 1
        (muted,) = [one for one in top["muted"] if one["client_id"] == client_id]
        assert (muted["user"], muted["quota"]) == ("ANONYMOUS", "producer_byte_rate")
        assert 0 < muted["left_s"] <= muted["throttle_s"]
        assert 2300 < muted["throttle_s"] < 2500
        assert client_id in admin("quotas", "top", "--count", 2, "--interval", 0.2)
        admin("quotas", "delete", *whom, "--yes")
        wait_until(lambda: admin.json("quotas", "top")["muted"] == [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("set", "producer_byte_rate=5"), "specify the entity"),
        (("set", "--user", "a"), "expected KEY=VALUE"),
        (("set", "--user", ""), "'--user': the value is empty"),
        (("set", "--client-id", ""), "--client-id takes a name"),
        (("set", "--user", "a", "--default-user", "producer_byte_rate=5"), "exclude each other"),
        (("set", "--user", "a", "producer_byte_rate=fast"), "such as 200, 10MB or 10MiB"),
        (("set", "--user", "a", "request_percentage=5MB"), "is in %, not B"),
        (("set", "--user", "a", "producer_byte_rat=5MB"), "did you mean producer_byte_rate?"),
        (("set", "--user", "a", "--file", "x"), "--file has entities and quotas"),
        (("set", "--file", "no-such-file"), "cannot read no-such-file"),
        (("list", "--strict"), "--strict needs an option"),
        (("list", "--user", "a", "--any-user"), "excludes the other options"),
    ],
)
def test_mistakes_are_told_in_a_sentence(arguments: tuple[str, ...], said: str) -> None:
    admin = Admin(MQ_BOOTSTRAP="127.0.0.1:1")
    admin("quotas", *arguments, code=2)
    assert said in admin.errors


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[", "neither JSON nor YAML"),
        ("user: alice", "must be a list"),
        ("- 5", "item 1: an item must have `entity` and `quotas`"),
        ("- {entity: {}, quotas: {}}", "item 1: `entity` must have"),
        ("- {entity: {group: g}, quotas: {}}", "`entity` has an unknown 'group'"),
        ("- {entity: {user: 5}, quotas: {}}", "user must be a string"),
        ("- {entity: {user: a}, quotas: {producer_byte_rate: [1]}}", "must be a number"),
        ("- {entity: {user: a}, quotas: {}}\n- {entity: {user: a}, quotas: {}}", "appears twice"),
        ("- !!python/object/apply:os.getcwd []", "neither JSON nor YAML"),
    ],
)
def test_files_that_are_wrong_are_told_in_a_sentence(
    content: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "quotas.yaml"
    file.write_text(content)
    admin = Admin(MQ_BOOTSTRAP="127.0.0.1:1")
    admin("quotas", "set", "--file", file, code=2)
    assert said in " ".join(admin.errors.split())


def test_amounts_are_written_as_people_write_them() -> None:
    for text, value in (
        ("1048576", 1048576),
        ("1MiB", 1048576),
        ("1 MiB/s", 1048576),
        ("20kB", 20_000),
        ("1.5MB/s", 1.5e6),
        ("1e6", 1e6),
    ):
        assert parse_amount("producer_byte_rate", text) == value
    assert parse_amount("request_percentage", "200%") == 200
    for value, text in (
        (20_000, "20 kB/s"),
        (16_384, "16 KiB/s"),
        (1 << 20, "1 MiB/s"),
        (1_500_000, "1.5 MB/s"),
        (999_999, "1 MB/s"),
        (1000, "1 kB/s"),
        (512, "512 B/s"),
        (14_643.2, "14.6 kB/s"),
    ):
        assert amount_text("producer_byte_rate", value) == text
    assert amount_text("request_percentage", 12.5) == "12.5%"
    assert amount_text("controller_mutation_rate", 5) == "5 mutations/s"


def test_live_use_is_recorded_for_a_simulation(node: Peer) -> None:
    admin, client_id = Admin(MQ_BOOTSTRAP=node.bootstrap), unique("client")
    topic = admin.create()
    whom = ("--client-id", client_id)
    asked = ("quotas", "record", *whom, "--seconds", "1.5", "--interval", "0.5")
    admin(*asked, code=1)
    assert "no producer_byte_rate applies to the client" in admin.errors
    admin("quotas", "set", *whom, "observed_producer_byte_rate=1GB")

    def produce() -> None:
        with connect(node.bootstrap, client_id=client_id) as cluster:
            producer = BlockingProducer(Producer(cluster))
            while not done.is_set():
                producer.send(topic, [ProducerRecord(bytes(10_000))])

    def recorded() -> str:
        profile = admin(*asked)
        sizes = json.loads(profile)["bytes"]
        assert len(sizes) == 3
        return profile if sum(sizes) > 10_000 else ""

    done = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(produce)
        try:
            profile = wait_until(recorded)  # wait until the producer has started
        finally:
            done.set()
        running.result(PATIENCE_S)
    text = admin("quotas", "simulate", "--quota", "1kB", "--profile-file", "-", stdin=profile)
    assert "longest delay" in text
    admin("quotas", "delete", *whom, "--yes")


def test_a_producer_is_told_that_a_quota_has_slowed_it_down(node: Peer) -> None:
    admin = Admin(MQ_BOOTSTRAP=node.bootstrap)
    topic = admin.create()
    # One without earlier use on the shared node, which would count.
    whom = ("--client-id", unique("slow"))
    admin("quotas", "set", *whom, "producer_byte_rate=20kB")
    try:
        admin("produce", topic, *whom, stdin="x" * 205_000)
        assert admin.errors.startswith("A quota delayed 1 of 1 responses, by up to 0.")
    finally:
        admin("quotas", "delete", *whom, "--yes")


def test_an_observed_quota_is_set_and_explained(node: Peer) -> None:
    admin, client_id = Admin(MQ_BOOTSTRAP=node.bootstrap), unique("client")
    whom = ("--client-id", client_id)
    topic = admin.create()
    admin("quotas", "set", *whom, "observed_producer_byte_rate=100")
    with connect(node.bootstrap, client_id=client_id) as cluster:
        BlockingProducer(Producer(cluster)).send(topic, [ProducerRecord(bytes(30_000))])
    rows = {row["quota"]: row for row in admin.json("quotas", "explain", *whom)["quotas"]}
    assert rows["producer_byte_rate"]["applies"] is None
    observed = rows["observed_producer_byte_rate"]
    assert (observed["applies"], observed["value"]) == (7, 100)
    (use,) = observed["workers"]
    assert (use["throttle_count"], use["muted_connections"]) == (1, 0)
    text = admin("quotas", "explain", *whom)
    assert "Observed: the delays were computed" in text
    admin("quotas", "delete", *whom, "--yes")


# Simulation

SNAPBACK = ("--quota", "100kB", "--constant", "1MB", "--request", "10kB", "--step", "0.5")


def simulated(*arguments: object) -> list[Any]:
    found: list[Any] = Admin().json("quotas", "simulate", *arguments)
    return found


def test_a_producer_over_its_quota_bursts_and_then_waits_and_keeps_to_it_on_the_average() -> None:
    (found,) = simulated(*SNAPBACK, "--seconds", 120)
    rows = found["timeline"]
    assert (found["quota"], found["value"], len(rows)) == ("producer_byte_rate", 100_000, 240)
    # The burst that the window allows, then alternating requests and pauses.
    assert sum(row["rate"] for row in rows[:3]) * 0.5 == pytest.approx(1e6, rel=0.15)
    assert all(0.8 < row["delay_s"] < 1.3 for row in rows[4:18] if row["delayed"])
    assert 100_000 <= found["average_rate"] < 100_000 * (120 + 11) / 120 * 1.02
    assert found["most_queued_bytes"] == pytest.approx(900_000 * 119, rel=0.05)
    assert all(row["offered_rate"] == pytest.approx(1e6) for row in rows)


def test_traffic_below_its_quota_is_not_delayed() -> None:
    one, other = simulated("--quota", "1MB", "--quota", "2MB", "--burst", "8MB", "--every", 20)
    assert (one["delayed"], other["delayed"]) == (0, 0)
    assert one["average_rate"] == pytest.approx(400_000, rel=0.01)
    (consumer,) = simulated("--quota", "100kB", "--constant", "90kB", "--consumer")
    assert consumer["delayed"] == 0
    assert consumer["average_rate"] == pytest.approx(90_000, rel=0.01)


def test_a_consumer_is_given_no_more_than_a_window_of_quota_at_once() -> None:
    (found,) = simulated(
        *("--quota", "10kB", "--constant", "1MB", "--consumer", "--request", "50MB"),
        *("--seconds", 300, "--connections", 1),
    )
    assert 0 < found["longest_delay_s"] <= 11
    assert 9_000 <= found["average_rate"] < 10_000 * (300 + 22) / 300


def test_a_profile_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "traffic.json"
    file.write_text('{"interval_s": 2, "bytes": [2000000, 0]}')
    (found,) = simulated("--quota", "5MB", "--profile-file", file, "--seconds", 8)
    offered = [round(row["offered_rate"]) for row in found["timeline"]]
    assert offered == [1_000_000, 1_000_000, 0, 0] * 2
    text = Admin()("quotas", "simulate", "--quota", "5MB", "--profile-file", file, "--table")
    assert re.search(r"^average rate +\d+\.?\d* kB/s$", text, re.MULTILINE)
    assert re.search(r"^ +1 +\S+ [kM]B/s +\S+ [kM]B/s +0.00 s +0 +", text, re.MULTILINE)
    assert "█" in text


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_timeline_is_drawn(ending: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    image = tmp_path / f"plot.{ending}"
    Admin()("quotas", "simulate", *SNAPBACK, "--seconds", 5, "--image", image)
    assert image.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_without_matplotlib_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    admin = Admin()
    admin("quotas", "simulate", *SNAPBACK, "--image", "plot.png", code=2)
    assert "pip install 'metaquorum[plot]'" in admin.errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "specify the traffic"),
        (("--constant", "1MB", "--burst", "1MB"), "specify the traffic"),
        (("--constant", "1MB", "--every", "5"), "--every needs --burst"),
        (("--constant", "0"), "--constant must be greater than 0"),
        (("--profile-file", "no-such-file"), "cannot read no-such-file"),
        (("--constant", "1MB", "--image", "plot.gif"), "ends in .png or .svg"),
    ],
)
def test_mistakes_in_a_simulation_are_told(arguments: tuple[str, ...], said: str) -> None:
    admin = Admin()
    admin("quotas", "simulate", "--quota", "1MB", *arguments, code=2)
    assert said in admin.errors


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"interval_s": 0, "bytes": [1]}',
        '{"interval_s": 1, "bytes": []}',
        '{"interval_s": 1, "bytes": [-1]}',
        '{"interval_s": 1, "bytes": [NaN]}',
    ],
)
def test_profiles_that_are_wrong_are_told(content: str) -> None:
    admin = Admin()
    asked = ("quotas", "simulate", "--quota", "1MB", "--profile-file", "-")
    admin(*asked, stdin=content, code=2)
    assert "Traceback" not in admin.errors
