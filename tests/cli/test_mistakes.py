"""Mistakes on the command line are reported before any request; messages describe the outcome."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from metaquorum.cli.admin.main import main as mq_admin
from metaquorum.cli.common.empty_values import takes_text
from metaquorum.cli.load.main import main as mq_load
from metaquorum.cli.server.main import main as mq_server
from metaquorum.runtime.one_line import UNSAFE
from metaquorum.runtime.own_processes import own_command, own_environment
from tests.cli.admin.running import Admin, environment
from tests.nodes import PATIENCE_S, Peer, unique

# No broker listens here: an error found after a connection attempt has another exit code.
NOBODY = "127.0.0.1:1"
BAD_USAGE = 2
SERVER, ADMIN = ("mq-server", mq_server), ("mq-admin", mq_admin)
LOAD = ("mq-load", mq_load)


def commands(
    group: click.Group, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, group
    with click.Context(group) as context:
        for name in group.list_commands(context):
            below = group.get_command(context, name)
            assert below is not None
            if isinstance(below, click.Group):
                yield from commands(below, (*words, name))
            else:
                yield (*words, name), below


def texts() -> Iterator[tuple[str, click.Group, tuple[str, ...], str]]:
    """Yield every parameter with a text value: the program, the words before it, and how it is
    given.
    """
    for program, main in (SERVER, ADMIN):
        for words, command in commands(main):
            for parameter in command.params:
                if isinstance(parameter, click.Option) and takes_text(parameter):
                    yield program, main, words, parameter.opts[-1]
                elif isinstance(parameter, click.Argument):
                    yield program, main, words, ""


@pytest.mark.parametrize(
    ("program", "main", "words", "option"),
    texts(),
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value or "argument"),
)
def test_an_empty_value_is_refused(
    program: str, main: click.Group, words: tuple[str, ...], option: str
) -> None:
    """The empty value is reported even if another argument is missing."""
    given = [*words, *([option, ""] if option else [""])]
    done = CliRunner().invoke(main, given, env=environment(), prog_name=program)
    assert done.exit_code == BAD_USAGE, done.output
    said = done.stderr.splitlines()[-1]
    if option or "unexpected extra argument" not in said:
        refusals = ("the value is empty; specify a value", "'' is not", "Path '' does not exist")
        assert any(refusal in said for refusal in refusals), said
    assert option in said


def fractions() -> Iterator[tuple[str, click.Group, tuple[str, ...], str]]:
    """Yield every option that takes a fraction, as `texts` does."""
    for program, main in (SERVER, ADMIN, LOAD):
        for words, command in commands(main):
            for parameter in command.params:
                if isinstance(parameter.type, click.FloatRange):
                    yield program, main, words, parameter.opts[-1]


@pytest.mark.parametrize(
    ("program", "main", "words", "option"),
    fractions(),
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_what_is_not_a_number_is_refused(
    program: str, main: click.Group, words: tuple[str, ...], option: str
) -> None:
    """NaN is within the bounds of each range, as no comparison with it is true."""
    done = CliRunner().invoke(main, [*words, option, "nan"], env=environment(), prog_name=program)
    assert done.exit_code == BAD_USAGE, done.output
    said = done.stderr.splitlines()[-1]
    assert said == f"Error: Invalid value for '{option}': nan is not a number.", said


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "create", "t", "--partitions", 2**31),
        ("topics", "create", "t", "--partitions", 99999999999999),
        ("topics", "create", "t", "--replication-factor", 2**15),
        ("topics", "alter", "t", "--partitions", 2**31),
        ("records", "delete", "t", "-p", 2**31, "--before", 1),
        ("records", "delete", "t", "--before", 2**63),
        ("records", "delete", "t", "--before", "9" * 5000),
        ("records", "delete", "t", "--before-time", "9999999999999d"),
        ("records", "delete", "t", "--before-time", "9" * 5000 + "d"),
        ("consume", "t", "-p", 2**31),
        ("consume", "t", "--from", 2**63),
        ("consume", "t", "--from", "9" * 5000),
        ("consume", "t", "--from-time", "9999999999999d ago"),
        ("consume", "t", "--from-time", "1969-12-31T23:59:59.998Z"),
        ("produce", "t", "-p", 2**31),
        ("cluster", "apis", "--node", 2**31),
        ("cluster", "apis", "--node", -1),
        ("ledger", "--node", 2**31),
        ("log-dirs", "--node", 2**31),
        ("workers", "describe", 2**31),
        ("workers", "unregister", 2**31, "--yes"),
        ("users", "create", "u", "--iterations", 2**31),
    ],
    ids=lambda words: " ".join(str(word)[:20] for word in words),
)
def test_a_number_for_which_the_protocol_has_no_room_is_a_usage_error(
    words: tuple[object, ...],
) -> None:
    admin = Admin()
    admin("-b", NOBODY, *words, code=BAD_USAGE)
    assert "may have been made" not in admin.errors


def test_what_cannot_be_written_was_not_sent_and_is_told_so(node: Peer) -> None:
    admin = Admin(MQ_BOOTSTRAP=node.bootstrap)
    admin("topics", "create", "t" * 40_000, code=BAD_USAGE)
    assert "nothing was sent" in admin.errors
    assert "may have been made" not in admin.errors


def test_empty_values_of_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('data-dir = ""\n')
    done = CliRunner().invoke(mq_server, ["run", "--config", str(file)])
    assert done.exit_code == BAD_USAGE
    assert "data-dir is empty" in done.stderr
    folder = tmp_path / "metaquorum"
    folder.mkdir()
    (folder / "mq-admin.toml").write_text('[profiles.p]\nbootstrap = ""\n')
    admin = Admin(XDG_CONFIG_HOME=str(tmp_path))
    admin("topics", "list", code=BAD_USAGE)
    assert "bootstrap is empty" in admin.errors


def test_quotas_that_are_taken_away_are_told_by_their_names(either: Peer) -> None:
    admin, user = Admin(MQ_BOOTSTRAP=either.bootstrap), unique("user")
    whom = ("--user", user)
    admin("quotas", "set", *whom, "producer_byte_rate=1MiB", "consumer_byte_rate=1MiB")
    admin.wait_until_quotas(whom, 2)
    said = admin("quotas", "delete", *whom, "producer_byte_rate", "request_percentage", "--yes")
    assert said == f"user={user}: producer_byte_rate deleted\n"
    assert admin.errors == f"user={user} has no quota request_percentage.\n"
    would = admin("quotas", "delete", *whom, "consumer_byte_rate", "--dry-run")
    assert would == f"user={user}: consumer_byte_rate would be deleted\n"


def test_one_of_two_mechanisms_that_is_removed_is_no_user_removed(either: Peer) -> None:
    admin, user = Admin(MQ_BOOTSTRAP=either.bootstrap), unique("user")
    both = ("--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-512")
    admin("users", "create", user, *both, stdin="a password")
    admin.wait_until_mechanisms(user, 2)
    said = admin("users", "delete", user, "--mechanism", "SCRAM-SHA-256", "--yes")
    assert said == f"SCRAM-SHA-256 of user {user} deleted; SCRAM-SHA-512 remains\n"


def test_a_share_of_more_than_a_worker_s_time_is_taken_and_told_to_limit_nobody(
    either: Peer, tmp_path: Path
) -> None:
    """In Kafka such a value can limit: a broker has 100% for each of its threads."""
    admin, user = Admin(MQ_BOOTSTRAP=either.bootstrap), unique("user")
    is_ours = "DescribeQuotaUse" in [row["api"] for row in admin.json("cluster", "apis")]
    admin("quotas", "set", "--user", user, "request_percentage=100")
    assert not admin.errors
    admin("quotas", "set", "--user", user, "request_percentage=100.5")
    told = f"user={user}: request_percentage 100.5% limits no client: "
    assert admin.errors.startswith(told) == is_ours
    file = tmp_path / "quotas.yaml"
    file.write_text(f"- entity: {{user: {user}}}\n  quotas: {{request_percentage: 200}}\n")
    admin("quotas", "apply", "--keep-others", "-f", file)
    assert ("200% limits no client" in admin.errors) == is_ours


def test_a_new_cluster_has_min_insync_replicas_for_all_of_its_nodes(either: Peer) -> None:
    """User interfaces then show it as changed, as with Kafka (docs/howto/use-kafka-tools.md)."""
    admin = Admin(MQ_BOOTSTRAP=either.bootstrap)
    rows = admin.json("configs", "describe", "broker", "default")
    assert "min.insync.replicas" in json.dumps(rows)


def test_the_metadata_log_is_no_topic_that_is_made_when_somebody_asks_for_it(
    either: Peer,
) -> None:
    admin = Admin(MQ_BOOTSTRAP=either.bootstrap)
    producer = Producer({"bootstrap.servers": either.bootstrap, "message.timeout.ms": 3000})
    refused: list[bool] = []
    producer.produce("__cluster_metadata", b"x", on_delivery=lambda e, _: refused.append(bool(e)))
    assert producer.flush(PATIENCE_S) == 0
    assert refused == [True]
    assert "__cluster_metadata" not in admin("topics", "list", "--internal")


def test_the_metadata_log_is_no_topic(either: Peer) -> None:
    admin = Admin(MQ_BOOTSTRAP=either.bootstrap)
    admin("topics", "create", "__cluster_metadata", code=1)
    assert "Creation of internal topic __cluster_metadata is prohibited." in admin.errors
    assert "INVALID_REQUEST" in admin.errors
    assert "__cluster_metadata" not in admin("topics", "list", "--internal")


def test_a_file_of_configs_with_secrets_that_others_can_read_is_told_of(tmp_path: Path) -> None:
    file, key = tmp_path / "node.toml", "listener.name.outside.plain.sasl.jaas.config"
    told = f"all users of this machine can access {file}, which sets {key}"
    for mode, content, is_told in (
        (0o644, f'[config]\n"{key}" = "Module required;"\n', True),
        (0o640, f'[config]\n"{key}" = "Module required;"\n', False),
        (0o644, "[config]\nnum.partitions = 3\n", False),
    ):
        file.write_text(
            content + '"listeners" = "OUTSIDE://nowhere"\n'
        )  # makes the start fail immediately
        file.chmod(mode)
        done = CliRunner().invoke(mq_server, ["run", "--config", str(file)])
        assert done.exit_code == BAD_USAGE
        assert "Traceback" not in done.output
        assert (told in done.stderr) == is_told, (done.stderr, mode)


def test_what_was_done_is_told_where_the_rest_is_refused(either: Peer) -> None:
    admin = Admin(MQ_BOOTSTRAP=either.bootstrap)
    topic = admin.create("--partitions", 3)
    changes = ("--config", "retention.ms=100000000", "--partitions", 2)
    admin("topics", "alter", topic, *changes, code=1)
    assert admin.errors.startswith(
        f"{topic}: its configs were altered; partitions were not added:\n"
    )
    assert "INVALID_PARTITIONS" in admin.errors


def test_a_name_in_a_broker_s_refusal_stays_within_its_line(either: Peer) -> None:
    """The name is escaped, so the terminal does not interpret it."""
    admin = Admin(MQ_BOOTSTRAP=either.bootstrap)
    name = "mallory\n\x1b[2Jmq-admin: forged\u2028"
    admin("users", "describe", name, code=1)
    assert "RESOURCE_NOT_FOUND" in admin.errors
    assert "mallory" in admin.errors
    assert not any(line.startswith("mq-admin: forged") for line in admin.errors.splitlines())
    assert not UNSAFE.search(admin.errors.replace("\n", ""))


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("program", "word"), [("admin", "--help"), ("server", "cluster-id")])
def test_output_that_a_full_disk_refuses_is_an_error_in_one_line(
    program: str, word: str, unbuffered: str
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*own_command(f"metaquorum.cli.{program}.main"), word],
            env={**own_environment(), "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
    said = "the output could not be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)
