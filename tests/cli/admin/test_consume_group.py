"""mq-admin consume --group: what is printed is committed."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.admin.running import Admin, environment
from tests.group_members import member
from tests.nodes import PATIENCE_S, ROOT, Peer, heed_interrupts, unique, wait_until


@pytest.fixture
def admin(with_groups: Peer) -> Admin:
    return Admin(MQ_BOOTSTRAP=with_groups.bootstrap)


def committed(admin: Admin, group: str) -> dict[int, int]:
    rows = admin.json("groups", "lag", group)
    return {row["partition"]: row["committed"] for row in rows if row["committed"] is not None}


def test_a_group_continues_after_the_printed_records(admin: Admin) -> None:
    topic, group = admin.create("-p", 2), unique("g")
    for partition, values in ((0, "a\nb\nc"), (1, "d\ne")):
        admin("produce", topic, "-p", partition, stdin=values)
    first = admin("consume", topic, "--group", group, "--from-beginning", "-n", 3).split()
    assert len(first) == 3
    assert sum(committed(admin, group).values()) == 3
    second = admin("consume", topic, "--group", group).split()
    assert sorted(first + second) == ["a", "b", "c", "d", "e"]
    assert admin("consume", topic, "--group", group) == ""
    assert committed(admin, group) == {0: 3, 1: 2}


def test_a_new_group_starts_at_the_end_and_keeps_that_start(admin: Admin) -> None:
    topic, group = admin.create("-p", 2), unique("g")
    admin("produce", topic, "-p", 0, stdin="old")
    assert admin("consume", topic, "--group", group) == ""
    # Also in partition 1, from which no record was ever printed.
    admin("produce", topic, "-p", 1, stdin="new")
    assert admin("consume", topic, "--group", group, "-o", "json").count("new") == 1


@contextmanager
def following(
    admin: Admin, topic: str, group: str, *more: str
) -> Iterator[subprocess.Popen[bytes]]:
    arguments = ["consume", topic, "--group", group, "--from-beginning", "--follow", *more]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "metaquorum.cli.admin.main",
            "-b",
            admin.environment["MQ_BOOTSTRAP"],
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment(),
        preexec_fn=heed_interrupts,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def interrupt(process: subprocess.Popen[bytes]) -> tuple[int | None, bytes, bytes]:
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, errors


@pytest.mark.parametrize("more", [(), ("--instance-id", "terminal")], ids=["dynamic", "static"])
def test_ctrl_c_commits_and_leaves_unless_static(admin: Admin, more: tuple[str, ...]) -> None:
    topic, group = admin.create(), unique("g")
    admin("produce", topic, stdin="a")
    with following(admin, topic, group, *more) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"a\n"
        assert interrupt(process) == (0, b"", b"")
    assert committed(admin, group) == {0: 1}
    (described,) = admin.json("groups", "describe", group)
    assert described["state"] == ("Stable" if more else "Empty")
    admin("produce", topic, stdin="b")
    assert admin("consume", topic, "--group", group, *more) == "b\n"


def test_another_member_takes_over_without_a_duplicate(admin: Admin, with_groups: Peer) -> None:
    topic, group = admin.create("-p", 2), unique("g")
    for partition in (0, 1):
        admin("produce", topic, "-p", partition, stdin="early")
    with following(admin, topic, group) as process:
        assert process.stdout is not None
        assert {process.stdout.readline() for _ in range(2)} == {b"early\n"}
        config = {"partition_assignment_strategy": "range", "heartbeat_interval_ms": 100}
        with member(with_groups.bootstrap, group, [topic], **config) as other:
            (theirs,) = other.assignment()
            admin("produce", topic, "-p", theirs.partition, stdin="theirs")
            admin("produce", topic, "-p", 1 - theirs.partition, stdin="ours")
            record = wait_until(lambda: other.poll(0.1))
            assert record.value() == b"theirs"
            assert process.stdout.readline() == b"ours\n"
            assert interrupt(process) == (0, b"", b"")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--instance-id", "i"), "--instance-id and --from-beginning need --group"),
        (("--from-beginning",), "--instance-id and --from-beginning need --group"),
        (("--group", "g", "-p", 1), "--group and --partition exclude each other"),
        (("--group", "g", "--from", "end"), "a group continues at its committed offsets"),
        (("--group", "g", "--from-time", "1h"), "a group continues at its committed offsets"),
    ],
)
def test_options_that_contradict_a_group_are_refused(
    options: tuple[object, ...], error: str
) -> None:
    admin = Admin()
    admin("consume", "t", *options, code=2)
    assert error in admin.errors
