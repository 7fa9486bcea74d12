"""Every file that a node leaves on its disk is in the tables of docs/reference/file-formats.md."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.dataplane.log.segments import names as log_names
from tests.nodes import PATIENCE_S, ROOT, Node, wait_until

PAGE = ROOT / "docs" / "reference" / "file-formats.md"
FIRST_COLUMN = re.compile(r"^\| (`.*?) \| ", re.MULTILINE)
PLACEHOLDERS = {
    "<offset>": r"\d{20}",
    "<term>": r"\d{10}",
    "<n>": r"\d+",
    "<unique>": r"[0-9a-f]{32}",
    "<topic>": r"[A-Za-z0-9._-]+",
    "<partition>": r"\d+",
    "*": r".+",
}


def documented(title: str) -> list[str]:
    """Return the names in the first table of a section; those of folders end with "/"."""
    found = re.search(rf"^## {title}$(.*?)(?=^##|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{PAGE} has no section {title}"
    names = [name for cell in FIRST_COLUMN.findall(found[1]) for name in cell.split("`")[1::2]]
    assert names, f"the section {title} has no table"
    return names


def matches(name: str, documented_names: list[str]) -> bool:
    for each in documented_names:
        pattern = re.escape(each)
        for placeholder, form in PLACEHOLDERS.items():
            pattern = pattern.replace(re.escape(placeholder), form)
        if re.fullmatch(pattern, name):
            return True
    return False


def undocumented(folder: Path, *titles: str) -> Iterator[str]:
    """Yield the files of a log directory and its folders that no table has."""
    known = [name for title in titles for name in documented(title)]
    for path in folder.iterdir():
        if not matches(path.name + "/" * path.is_dir(), known):
            yield str(path)
        elif path.is_dir():
            title = "Metadata" if path.name == "metadata" else "Partition folders"
            inside = documented(title)
            yield from (str(one) for one in path.iterdir() if not matches(one.name, inside))


def admin(node: Node, *arguments: str, text: str = "") -> None:
    command = [sys.executable, "-m", "metaquorum.cli.admin.main", "-b", node.bootstrap, *arguments]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ends", ["killed", "stopped"])
def test_every_file_of_a_node_is_documented(tmp_path: Path, ends: str) -> None:
    second = tmp_path / "second"
    node = Node(tmp_path / "node")
    node.configure(
        {
            "log.dirs": f"{node.data_dir},{second}",
            "log.cleaner.backoff.ms": 100,
            "log.retention.check.interval.ms": 500,
            "replica.high.watermark.checkpoint.interval.ms": 200,
        }
    )
    node.start()
    compacted = ("--config", "cleanup.policy=compact", "--config", "segment.ms=100")
    admin(node, "topics", "create", "orders", "--partitions", "3")
    admin(node, "topics", "create", "keys", *compacted, "--config", "min.cleanable.dirty.ratio=0")
    admin(node, "topics", "create", "deleted")
    for value in ("first", "second", "third"):
        admin(node, "produce", "orders", text=value)
        admin(node, "produce", "deleted", text=value)
        admin(node, "produce", "keys", "--key", "same", text=value)
    admin(node, "topics", "delete", "deleted", "--yes")
    wait_until(lambda: list(tmp_path.rglob("*.deleted")), what="a compacted segment")
    wait_until(lambda: list(tmp_path.rglob("*-delete")), what="the deleted topic")
    running = list(undocumented(second, "Log directories", "Data directory"))
    if ends == "killed":
        node.kill()
    else:
        node.stop()
    assert running == []
    assert list(undocumented(node.data_dir, "Data directory", "Log directories")) == []
    assert list(undocumented(second, "Log directories", "Data directory")) == []
    names = {path.name for path in tmp_path.rglob("*")}
    assert {".metaquorum_started", "log-dirs.properties", "partition.metadata"} <= names
    assert (".kafka_cleanshutdown" in names) == (ends == "stopped")


def test_every_name_of_a_log_directory_is_documented() -> None:
    """Check the names in the code, too: some files appear only after failures."""
    constants = {key: value for key, value in vars(log_names).items() if key.isupper()}
    texts = [value for value in constants.values() if isinstance(value, str)]
    assert len(texts) > 15
    titles = ("Data directory", "Log directories", "Partition folders")
    known = [name for title in titles for name in documented(title)]
    assert [one for one in texts if not any(one in name for name in known)] == []
