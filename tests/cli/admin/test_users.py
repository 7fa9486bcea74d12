"""mq-admin users, with metaquorum and a real Kafka."""

from pathlib import Path

import pytest

from metaquorum.security.scram import MAX_ITERATIONS
from tests.cli.admin.running import Admin
from tests.nodes import Peer, unique, wait_until

SECRET = "a s3cret that is shown nowhere"


@pytest.fixture
def admin(either: Peer) -> Admin:
    return Admin(MQ_BOOTSTRAP=either.bootstrap)


@pytest.fixture
def user() -> str:
    return unique("user")


def mechanisms(admin: Admin, user: str) -> dict[str, int]:
    rows = admin.json("users", "list")
    return {row["mechanism"]: row["iterations"] for row in rows if row["user"] == user}


def seen(admin: Admin, user: str, wanted: dict[str, int]) -> None:
    """Wait until Kafka's brokers have applied the change, which it acknowledges earlier."""
    wait_until(lambda: mechanisms(admin, user) == wanted, what=str(wanted))


def test_users_come_change_and_go(admin: Admin, user: str, tmp_path: Path) -> None:
    assert admin("users", "create", user, stdin=SECRET) == f"user {user} created\n"
    seen(admin, user, {"SCRAM-SHA-512": 8192})
    assert user in admin("users", "describe", user)
    (file := tmp_path / "password").write_text(SECRET + "\n")
    more = ("--mechanism", "scram-sha-256", "--iterations", MAX_ITERATIONS)
    admin("users", "alter", user, *more, "--new-password-file", file)
    seen(admin, user, {"SCRAM-SHA-256": MAX_ITERATIONS, "SCRAM-SHA-512": 8192})
    by_environment = Admin(**admin.environment, MQ_NEW_PASSWORD=SECRET)
    by_environment("users", "alter", user, "--iterations", 4096)  # all mechanisms of the user
    seen(admin, user, {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096})
    admin("users", "delete", user, "--mechanism", "SCRAM-SHA-256", "--yes")
    seen(admin, user, {"SCRAM-SHA-512": 4096})
    admin("users", "delete", user, code=2)
    assert "no terminal for the question" in admin.errors
    assert admin("users", "delete", user, "--yes") == f"user {user} deleted\n"
    seen(admin, user, {})


def test_whoever_is_there_is_not_made_anew_and_who_is_not_is_not_changed(
    admin: Admin, user: str
) -> None:
    for what in ("alter", "describe", "delete"):
        admin("users", what, user, code=1, stdin=SECRET)
        assert "RESOURCE_NOT_FOUND" in admin.errors
        assert SECRET not in admin.errors
    admin("users", "create", user, stdin=SECRET)
    seen(admin, user, {"SCRAM-SHA-512": 8192})
    admin("users", "create", user, code=1, stdin=SECRET)
    assert "the user exists already" in admin.errors
    admin("users", "delete", user, "--yes")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "the password is empty"),
        (("--new-password-file", "/nowhere/at/all"), "cannot read /nowhere/at/all"),
        (("--mechanism", "PLAIN"), "'PLAIN' is not one of"),
        (("--iterations", "1000"), "1000 is not in the range"),
    ],
)
def test_what_makes_no_password_is_told(given: tuple[str, ...], words: str, node: Peer) -> None:
    admin = Admin(MQ_BOOTSTRAP=node.bootstrap)
    admin("users", "create", unique("user"), *given, code=2 if given else 1)
    assert words in admin.errors


def test_no_option_takes_a_password() -> None:
    told = Admin()("users", "create", "--help")
    assert "--password" not in told
    assert "--new-password-file" in told
