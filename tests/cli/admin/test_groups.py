"""mq-admin groups, compared with Kafka's kafka-consumer-groups on the same cluster."""

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.cli.admin.running import Admin
from tests.conftest import KafkaTool
from tests.group_members import member
from tests.nodes import Peer, unique, wait_until


@pytest.fixture
def admin(with_groups: Peer) -> Admin:
    return Admin(MQ_BOOTSTRAP=with_groups.bootstrap)


@pytest.fixture
def tool(with_groups: Peer, kafka_tool: KafkaTool) -> Callable[..., str]:
    """Return a function that runs kafka-consumer-groups and returns its standard output."""

    def run(*arguments: object) -> str:
        done = kafka_tool(
            "consumer-groups", "--bootstrap-server", with_groups.bootstrap, *arguments
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def new_topic(admin: Admin, *counts: int) -> str:
    """Create a topic whose partitions have these numbers of records."""
    name = admin.create("-p", len(counts))
    for index, count in enumerate(counts):
        admin("produce", name, "--partition", index, stdin="v\n" * count)
    return name


def commit(admin: Admin, group: str, *scope: object) -> None:
    admin("groups", "reset", group, *scope, "--execute")


def offsets(admin: Admin, group: str) -> dict[int, int]:
    rows = admin.json("groups", "lag", group)
    return {row["partition"]: row["committed"] for row in rows if row["committed"] is not None}


def table(text: str) -> list[dict[str, str]]:
    """Parse the tables of Kafka's tool, whose cells contain no spaces."""
    rows: list[dict[str, str]] = []
    heading: list[str] = []
    for line in text.splitlines():
        words = line.replace("COORDINATOR (ID)", "COORDINATOR ID").split()
        if words[:1] == ["GROUP"]:
            heading = words
        elif heading and len(words) == len(heading):
            rows.append(dict(zip(heading, words, strict=True)))
    return rows


# Lists and descriptions


def test_groups_are_listed_with_filters(admin: Admin) -> None:
    topic, name = new_topic(admin, 1), unique("g")
    commit(admin, name, "--topic", topic, "--to", "latest")
    (row,) = admin.json("groups", "list", "--match", name[:-1] + "*", "--state", "empty")
    assert row == {
        "group": name,
        "state": "Empty",
        "type": "classic",
        "protocol_type": "",
        "coordinator": 1,
    }
    text = admin("groups", "list", "--type", "classic", "--match", name)
    assert re.search(rf"^{name} +Empty +classic +- +1$", text, re.MULTILINE)
    assert admin("groups", "list", "--match", name, "--state", "Stable") == ""
    assert admin.errors == "No group matches.\n"
    admin("groups", "list", "--state", "Idle", code=2)


def test_members_are_described(admin: Admin, with_groups: Peer) -> None:
    topic, name = new_topic(admin, 1, 1), unique("g")
    with member(with_groups.bootstrap, name, [topic], "billing"):
        (group,) = admin.json("groups", "describe", name)
        (only,) = group["members"]
        assert (group["state"], group["assignor"]) == ("Stable", "range")
        assert (only["client_id"], only["host"]) == ("billing", "127.0.0.1")
        assert only["subscription"]["topics"] == [topic]
        assert only["assignment"] == [{"topic": topic, "partitions": [0, 1]}]
        text = admin("groups", "describe", name)
        assert re.search(r"^state +Stable$", text, re.MULTILINE)
        assert re.search(rf"^billing +127.0.0.1 +- +\S+ +{topic}:0,1$", text, re.MULTILINE)
    admin("groups", "describe", "no-such-group", code=1)
    assert "GROUP_ID_NOT_FOUND" in admin.errors
    assert "`mq-admin groups list` shows the groups" in admin.errors


@pytest.mark.parametrize(
    ("api", "arguments"),
    [("ListGroups", ("list",)), ("DescribeGroups", ("reset", "g", "--topic", "t", "--to", "1"))],
)
def test_a_cluster_without_groups_is_named_as_such(
    either: Peer, api: str, arguments: tuple[str, ...]
) -> None:
    admin = Admin(MQ_BOOTSTRAP=either.bootstrap)
    if admin.serves(api):
        admin("groups", "list")
        return
    admin("groups", *arguments, code=1)
    assert f"this cluster does not serve {api}" in admin.errors


# Lag


def test_lag_shows_commits_and_owned_partitions(admin: Admin, with_groups: Peer) -> None:
    topic, name = new_topic(admin, 5, 2), unique("g")
    commit(admin, name, "--topic", f"{topic}:0", "--to", 3)
    with member(with_groups.bootstrap, name, [topic], "billing"):
        first, second = admin.json("groups", "lag", name)
        assert (first["committed"], first["end_offset"], first["lag"]) == (3, 5, 2)
        assert (second["committed"], second["end_offset"], second["lag"]) == (None, 2, None)
        assert {first["client_id"], second["client_id"]} == {"billing"}
        text = admin("groups", "lag", name)
        line = rf"^{name} +{topic} +1 +- +0 +2 +- +billing +127.0.0.1$"
        assert re.search(line, text, re.MULTILINE)
        (only,) = admin.json("groups", "lag", name, "--topic", f"{topic}:1")
        assert only == second
    (total,) = admin.json("groups", "lag", "--match", name, "--summary")
    assert total == {"group": name, "state": "Empty", "partitions": 1, "lag": 2, "unknown": 0}


def test_lag_needs_groups_or_a_pattern(admin: Admin) -> None:
    admin("groups", "lag", code=2)
    assert "specify either groups or --match PATTERN" in admin.errors
    admin("groups", "lag", "g", "--match", "g", code=2)
    admin("groups", "lag", "g", "--topic", "t:x", code=2)
    assert "--topic takes TOPIC or TOPIC:PARTITION,..., not 't:x'" in admin.errors


# Explanations


def explained(admin: Admin, group: str, *options: object) -> Any:
    return admin.json("groups", "explain", group, "--sample", 0, *options)


def texts(explanation: Any) -> str:
    return "\n".join(each["text"] for each in explanation["findings"])


def test_a_group_is_explained_by_metaquorum_only(admin: Admin) -> None:
    topic, name = new_topic(admin, 5, 3), unique("g")
    commit(admin, name, "--topic", f"{topic}:0", "--to", 3)
    if not admin.served("DescribeGroupActivity", "groups", "explain", name, "--sample", 0):
        return
    found = explained(admin, name)
    assert (found["state"], found["members"]) == ("Empty", [])
    (bad,) = found["findings"]
    assert (bad["about"], bad["level"]) == ("members", "bad")
    assert "the group has no members" in bad["text"]
    (row,) = found["partitions"]
    assert (row["partition"], row["committed"], row["end_offset"], row["lag"]) == (0, 3, 5, 2)
    assert row["size_bytes"] > 0
    assert 0 <= row["age_s"] < 3600
    assert row["growth_per_s"] is None
    admin("groups", "explain", unique("none"), code=1)
    assert "GROUP_ID_NOT_FOUND" in admin.errors


def test_lag_and_owners_are_explained(admin: Admin, with_groups: Peer) -> None:
    if not admin.serves("DescribeGroupActivity"):
        return
    topic, name = new_topic(admin, 5, 2), unique("g")
    commit(admin, name, "--topic", topic, "--to", "latest")
    with member(with_groups.bootstrap, name, [topic], "billing"):
        found = explained(admin, name, "--sample", 60)  # not waited: everything is read
        assert [each["level"] for each in found["findings"]] == ["good"]
        assert "no problem was found: the group is Stable" in texts(found)
        assert [(row["lag"], row["age_s"], row["growth_per_s"]) for row in found["partitions"]] == [
            (0, 0, None),
            (0, 0, None),
        ]
        (only,) = found["members"]
        assert (only["client_id"], only["user"], only["topics"]) == (
            "billing",
            "ANONYMOUS",
            [topic],
        )
        assert [each["partition"] for each in only["assignment"]] == [0, 1]
        assert not only["is_late"]
        (rebalance,) = found["rebalances"]
        assert (rebalance["cause"], rebalance["client_id"]) == ("a member has joined", "billing")
        admin("topics", "alter", topic, "--partitions", 3)
        admin.wait_for(topic)
        found = explained(admin, name)
        if found["unowned"]:  # until the member sees the new partition
            assert found["unowned"] == [{"topic": topic, "partition": 2}]
            assert f"no member owns {topic}:2" in texts(found)
        text = admin("groups", "explain", name, "--sample", 0)
        assert re.search(rf"^billing +127.0.0.1 +- +ok +.* ago +.* s +{topic}:0-", text, re.M)


def test_a_member_that_does_not_join_again_is_named(admin: Admin, with_groups: Peer) -> None:
    if not admin.serves("DescribeGroupActivity"):
        return
    topic, name = new_topic(admin, 1, 1), unique("g")
    asked = {"bootstrap.servers": with_groups.bootstrap, "group.id": name, "client.id": "new"}
    # It is closed when the other member has left: librdkafka waits 5 s for an answer to JoinGroup.
    with (
        closing(confluent_kafka.Consumer(asked)) as joining,
        member(with_groups.bootstrap, name, [topic], "billing"),  # it is not polled from here on
    ):
        joining.subscribe([topic])
        wait_until(
            lambda: (
                joining.poll(0.01) is None and explained(admin, name)["waits_for"] == "JoinGroup"
            )
        )
        found = explained(admin, name)
        late, waiting = found["members"]
        assert (late["client_id"], late["is_late"]) == ("billing", True)
        assert (waiting["client_id"], waiting["waiting_in"]) == ("new", "JoinGroup")
        assert found["rebalances"][-1]["lasted_s"] is None
        assert re.search(
            r"1 of 2 members has waited .* for billing \(127.0.0.1\), silent for .*, to join "
            r"again; it continues without them in .* min",
            texts(found),
        )
        text = admin("groups", "explain", name, "--sample", 0)
        assert re.search(r"^! rebalance: 1 of 2 members", text, re.MULTILINE)
        assert re.search(r"^billing +127.0.0.1 +- +late ", text, re.MULTILINE)


def test_a_quota_that_delays_a_member_is_named(admin: Admin, with_groups: Peer) -> None:
    if not admin.serves("DescribeGroupActivity"):
        return
    topic, name, client_id = new_topic(admin, 0), unique("g"), unique("billing")
    admin("produce", topic, stdin="x" * 50_000)
    admin("quotas", "set", "--client-id", client_id, "consumer_byte_rate=1000")
    with member(with_groups.bootstrap, name, [topic], client_id):
        wait_until(lambda: explained(admin, name)["throttling"])
        (of_quota,) = explained(admin, name)["throttling"]
        assert (of_quota["worker"], of_quota["quota"]) == (1, "consumer_byte_rate")
        assert (of_quota["value"], of_quota["rule"], of_quota["is_active"]) == (1000, 7, True)
        text = admin("groups", "explain", name, "--sample", 0)
        rule = rf"by consumer_byte_rate, 1000 bytes a second, rule 7, client-id={client_id}; now by"
        assert re.search(rf"^! quota: {client_id} .*: worker 1 .*{rule}", text, re.MULTILINE)
    admin("quotas", "delete", "--client-id", client_id, "--yes")


# Resets


def test_a_reset_is_a_plan_until_it_is_executed(admin: Admin) -> None:
    topic, name = new_topic(admin, 5, 2), unique("g")
    text = admin("groups", "reset", name, "--topic", topic, "--to", "latest")
    assert re.search(rf"^{name} +{topic} +0 +- +5 +0 +5$", text, re.MULTILINE)
    assert admin.errors == (
        f"group {name} does not exist; a commit creates it\n"
        "Nothing was changed; --execute commits these offsets.\n"
    )
    admin("groups", "lag", name, code=1)
    rows = admin.json("groups", "reset", name, "--topic", topic, "--to", "latest", "--execute")
    assert [(row["new"], row["executed"]) for row in rows] == [(5, True), (2, True)]
    assert offsets(admin, name) == {0: 5, 1: 2}
    commit(admin, name, "--topic", f"{topic}:1", "--shift-by", -1)
    assert offsets(admin, name) == {0: 5, 1: 1}
    commit(admin, name, "--all-topics", "--to-time", "7d")
    assert offsets(admin, name) == {0: 0, 1: 0}


def test_an_offset_outside_the_log_is_moved_to_its_end(admin: Admin) -> None:
    topic, name = new_topic(admin, 5), unique("g")
    admin("records", "delete", topic, "--before", 2, "--yes")
    (row,) = admin.json("groups", "reset", name, "--topic", topic, "--to", 100)
    assert (row["new"], row["clamped_from"]) == (5, 100)
    assert "does not contain offset 100; the new offset is the log end, 5" in admin.errors
    (row,) = admin.json("groups", "reset", name, "--topic", topic, "--to", 1)
    assert (row["new"], row["clamped_from"]) == (2, 1)
    assert "does not contain offset 1; the new offset is the log start, 2" in admin.errors


def test_a_group_with_members_is_not_reset(admin: Admin, with_groups: Peer) -> None:
    topic, name = new_topic(admin, 1), unique("g")
    with member(with_groups.bootstrap, name, [topic], "billing"):
        admin("groups", "reset", name, "--topic", topic, "--to", 0, "--execute", code=1)
        assert admin.errors == (
            f"mq-admin: group {name}: it is Stable and has 1 member: billing (127.0.0.1) "
            "(NON_EMPTY_GROUP)\n"
            "  stop its members first: `mq-admin groups describe` shows them\n"
            "Nothing was changed.\n"
        )
        admin("groups", "delete", name, "--yes", code=1)
        assert f"group {name}: the group has members (NON_EMPTY_GROUP)" in admin.errors
    assert offsets(admin, name) == {}


def test_a_refused_partition_leaves_all_others_unchanged(admin: Admin) -> None:
    topic, name = new_topic(admin, 5), unique("g")
    asked = ("reset", name, "--topic", f"{topic}:0,7", "--to", "earliest", "--execute")
    admin("groups", *asked, code=1)
    assert f"partition {topic}-7: there is no such partition" in admin.errors
    assert admin.errors.endswith("Nothing was changed.\n")
    admin("groups", "lag", name, code=1)
    admin("groups", "reset", name, "--topic", topic, "--shift-by", 1, "--execute", code=1)
    assert "there is no committed offset to shift" in admin.errors
    admin("groups", "reset", name, "--topic", unique("none"), "--to", 1, "--execute", code=1)
    assert "there is no such topic" in admin.errors
    admin("groups", "reset", name, "--all-topics", "--to", 1, "--execute", code=1)
    assert f"group {name} has no committed offsets" in admin.errors


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ((), "specify one of --to, --to-time, --shift-by and --from-file"),
        (("--to", "1", "--shift-by", "1"), "specify one of --to"),
        (("--to", "middle"), "--to takes earliest, latest, current or an offset, not 'middle'"),
        (("--to", "1"), "specify either --topic or --all-topics"),
        (("--to", "1", "--topic", "t", "--all-topics"), "specify either --topic or --all-topics"),
        (("--from-file", "f", "--topic", "t"), "omit --topic"),
        (("--from-file", "/nonexistent"), "cannot read /nonexistent"),
        (("--to", "1", "--topic", "t", "--export", "-o", "json"), "--export prints CSV"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    admin: Admin, options: tuple[str, ...], error: str
) -> None:
    admin("groups", "reset", "g", *options, code=2)
    assert error in admin.errors


def test_an_exported_plan_is_restored_from_its_file(admin: Admin, tmp_path: Path) -> None:
    topic, first, second = new_topic(admin, 5, 3), unique("g"), unique("g")
    commit(admin, first, "--topic", topic, "--to", 2)
    commit(admin, second, "--topic", f"{topic}:1", "--to", 1)
    asked = ("--all-topics", "--to", "current", "--export")
    exported = admin("groups", "reset", first, *asked)
    assert exported == f"{topic},0,2\n{topic},1,2\n"
    of_both = admin("groups", "reset", first, second, *asked)
    file = tmp_path / "offsets.csv"
    file.write_text(of_both)
    commit(admin, first, "--all-topics", "--to", "latest")
    admin("groups", "reset", first, second, "--from-file", file, "--execute")
    assert (offsets(admin, first), offsets(admin, second)) == ({0: 2, 1: 2}, {1: 1})
    admin("groups", "reset", second, "--from-file", "-", "--execute", stdin=exported)
    assert offsets(admin, second) == {0: 2, 1: 2}
    admin("groups", "reset", "other", "--from-file", file, code=1)
    assert "the file has no offsets of group other" in admin.errors
    admin("groups", "reset", first, "--from-file", "-", stdin="t,0\n", code=2)
    assert "-: line 1: every line must be" in admin.errors


# Deletion


def test_groups_and_offsets_are_deleted_after_a_confirmation(admin: Admin) -> None:
    topic, name = new_topic(admin, 5, 3), unique("g")
    commit(admin, name, "--topic", topic, "--to", "latest")
    admin("groups", "delete", name, "--topic", f"{topic}:1", code=2)
    assert f"{name}: committed offsets of {topic}-1\n" in admin.errors
    assert "Delete 1 committed offset?" in admin.errors
    assert offsets(admin, name) == {0: 5, 1: 3}
    said = admin("groups", "delete", name, "--topic", f"{topic}:1", "--yes")
    assert said == f"{name}: committed offset of {topic}-1 deleted\n"
    assert offsets(admin, name) == {0: 5}
    admin("groups", "delete", name, "--topic", f"{topic}:1", "--yes", code=1)
    assert f"group {name} has no committed offset in {topic}:1\n" in admin.errors
    admin("groups", "delete", name, code=2)
    assert f"Delete group {name} with all committed offsets?" in admin.errors
    assert admin("groups", "delete", name, "--yes") == f"{name} deleted\n"
    admin("groups", "delete", name, "--yes", code=1)
    assert f"group {name}: there is no such group (GROUP_ID_NOT_FOUND)" in admin.errors


# Kafka's tool on the same cluster


def test_kafkas_tool_shows_the_same_group(
    admin: Admin, tool: Callable[..., str], with_groups: Peer
) -> None:
    topic, name = new_topic(admin, 5, 2), unique("g")
    commit(admin, name, "--topic", f"{topic}:0", "--to", 3)
    with member(with_groups.bootstrap, name, [topic], "billing"):
        (listed,) = [row for row in table(tool("--list", "--state")) if row["GROUP"] == name]
        assert listed["STATE"] == "Stable"
        (ours,) = admin.json("groups", "list", "--match", name)
        assert (ours["state"], ours["type"]) == ("Stable", "classic")
        theirs = table(tool("--describe", "--group", name))
        rows = admin.json("groups", "lag", name)
        assert [_as_kafka(row) for row in rows] == sorted(
            (_facts(row) for row in theirs), key=lambda facts: int(facts[1])
        )
        (of_state,) = table(tool("--describe", "--group", name, "--state"))
        (described,) = admin.json("groups", "describe", name)
        assert of_state["ASSIGNMENT-STRATEGY"] == described["assignor"]
        assert int(of_state["#MEMBERS"]) == len(described["members"]) == 1
        (of_member,) = table(tool("--describe", "--group", name, "--members"))
        (only,) = described["members"]
        assert of_member["CONSUMER-ID"] == only["member_id"]
        assert of_member["HOST"] == f"/{only['host']}"
        assert int(of_member["#PARTITIONS"]) == sum(
            len(each["partitions"]) for each in only["assignment"]
        )
    wait_until(lambda: admin.json("groups", "list", "--match", name)[0]["state"] == "Empty")
    (listed,) = [row for row in table(tool("--list", "--state")) if row["GROUP"] == name]
    assert listed["STATE"] == "Empty"


_FACTS = (
    *("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"),
    *("CONSUMER-ID", "HOST", "CLIENT-ID"),
)


def _facts(row: dict[str, str]) -> list[str]:
    return [row[name].removeprefix("/") for name in _FACTS]


def _as_kafka(row: dict[str, object]) -> list[str]:
    names = ("topic", "partition", "committed", "end_offset", "lag", "member_id", "host")
    return ["-" if row[name] is None else str(row[name]) for name in (*names, "client_id")]


def test_kafkas_tool_plans_the_same_offsets(
    admin: Admin, tool: Callable[..., str], tmp_path: Path
) -> None:
    topic, name = new_topic(admin, 5, 4), unique("g")
    commit(admin, name, "--topic", f"{topic}:1", "--to", 1)
    admin("records", "delete", topic, "--partition", 1, "--before", 2, "--yes")
    file = tmp_path / "offsets.csv"
    file.write_text(f"{topic},0,100\n{topic},1,0\n")
    both, second = ("--topic", topic), ("--topic", f"{topic}:1")
    for ours, theirs in (
        ((*both, "--to", "earliest"), (*both, "--to-earliest")),
        ((*both, "--to", "latest"), (*both, "--to-latest")),
        ((*both, "--to", "current"), (*both, "--to-current")),
        ((*both, "--to", 100), (*both, "--to-offset", 100)),
        ((*second, "--shift-by", 2), (*second, "--shift-by", 2)),
        ((*second, "--shift-by", -9), (*second, "--shift-by", -9)),
        ((*both, "--to-time", "2h"), (*both, "--by-duration", "PT2H")),
        (
            (*both, "--to-time", "2099-01-01T00:00:00Z"),
            (*both, "--to-datetime", "2099-01-01T00:00:00.000"),
        ),
        (("--all-topics", "--to", "earliest"), ("--all-topics", "--to-earliest")),
        (("--from-file", file), ("--from-file", file)),
    ):
        plan = admin.json("groups", "reset", name, *ours)
        shown = table(tool("--reset-offsets", "--group", name, *theirs, "--dry-run"))
        assert {row["partition"]: row["new"] for row in plan} == {
            int(row["PARTITION"]): int(row["NEW-OFFSET"]) for row in shown
        }, ours
    exported = admin("groups", "reset", name, *both, "--to", "latest", "--export")
    theirs_exported = tool(
        *("--reset-offsets", "--group", name, *both, "--to-latest", "--dry-run", "--export")
    )
    assert sorted(exported.split()) == sorted(theirs_exported.split())
