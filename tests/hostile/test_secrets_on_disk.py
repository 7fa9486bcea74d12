"""Other users of the machine cannot read any file of a node that contains credentials."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.security.decoy_key import DECOY_KEY
from tests.cli.admin.running import Admin
from tests.cli.admin.test_security import formatted
from tests.nodes import Node, elsewhere, free_port

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="it is our data directory")

FIRST, LATER, DELETED = "first-user-of-the-test", "later-user-of-the-test", "deleted-user-of-it"
OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.fixture
def umask_of_nothing() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def guarded_node(folder: Path) -> tuple[Node, Admin]:
    plain = f"127.0.0.1:{free_port()}"
    settings = {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{free_port()},PLAINTEXT://{plain}",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    }
    return Node(folder, settings), Admin(MQ_BOOTSTRAP=plain)


def with_credentials(data_dir: Path) -> set[Path]:
    """Return the files that contain the name of a test user, in any encoding of records."""
    forms = [form for user in (FIRST, LATER, DELETED) for form in (user, user.encode().hex())]
    return {
        path
        for path in data_dir.rglob("*")
        if path.is_file() and any(form.encode() in path.read_bytes() for form in forms)
    }


def readable_by_others(paths: set[Path]) -> set[Path]:
    return {path for path in paths if path.stat().st_mode & OTHERS}


def changed_users(admin: Admin) -> None:
    for user in (LATER, DELETED):
        admin("users", "create", user, stdin="a password")
    admin("users", "delete", DELETED, "--yes")


def test_files_with_credentials_are_private_whatever_the_umask(
    tmp_path: Path, umask_of_nothing: None
) -> None:
    node, admin = guarded_node(tmp_path)
    formatted(node.data_dir, f"SCRAM-SHA-512=[name={FIRST},password=secret]")
    node.start()
    changed_users(admin)
    node.stop()
    metadata = node.data_dir / "metadata"
    found = with_credentials(node.data_dir)
    assert {path.name for path in found if path.parent == node.data_dir} == {"first.records"}
    assert any(path.parent == metadata for path in found)
    assert not readable_by_others(found | {metadata, node.data_dir / DECOY_KEY})
    assert not readable_by_others(set(metadata.iterdir()))


def test_files_of_an_older_version_become_private_at_the_next_start_which_says_so(
    tmp_path: Path,
) -> None:
    node, admin = guarded_node(tmp_path)
    formatted(node.data_dir, f"SCRAM-SHA-512=[name={FIRST},password=secret]")
    node.start()
    changed_users(admin)
    node.stop()
    metadata = node.data_dir / "metadata"
    files = with_credentials(node.data_dir) | set(metadata.iterdir())
    for path in (metadata, *files):
        path.chmod(0o755 if path == metadata else 0o644)
    assert "other users of this machine" not in node.errors.read_text()
    node.start()
    node.stop()
    assert not readable_by_others(files | {metadata})
    said = [line for line in node.errors.read_text().splitlines() if "other users of" in line]
    assert len(said) == 2, "one line of the directory, one of first.records"
    assert all("change the passwords" in line for line in said)
    node.start()
    node.stop()
    assert node.errors.read_text().count("other users of") == 2, (
        "the permissions were fixed by the first start"
    )
