"""Every decision has its number, its status and its four sections, and is in the index."""

import re
from pathlib import Path

import pytest

from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication import follower_state
from metaquorum.dataplane.replication.replica_fetcher import FollowerEvents, ReplicaFetcher
from tests.nodes import ROOT

FOLDER = ROOT / "docs" / "decisions"
DECISIONS = sorted(FOLDER.glob("[0-9]*.md"))
SECTIONS = ["Context", "Decision", "Alternatives", "Consequences"]
STATUS = re.compile(r"^Status: (Accepted|Superseded by \[\d{3}\]\([\w-]+\.md\))\.$", re.MULTILINE)
MOST_WORDS = 400  # one page


def test_they_are_numbered_from_1_on() -> None:
    numbers = [int(path.name[:3]) for path in DECISIONS]
    assert numbers == list(range(1, len(DECISIONS) + 1))


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_one_form(path: Path) -> None:
    text = path.read_text()
    assert text.startswith(f"# {path.name[:3]}. ")
    assert STATUS.search(text)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert len(text.split()) <= MOST_WORDS


def test_the_index_lists_each_once() -> None:
    rows = re.findall(r"^\| \[(.*?)\]\((.*?)\) \| .+ \|$", (FOLDER / "README.md").read_text(), re.M)
    titles = [path.read_text().partition("\n")[0].removeprefix("# ") for path in DECISIONS]
    assert sorted(rows) == list(zip(titles, [path.name for path in DECISIONS], strict=True))


def test_the_path_of_a_truncation_names_functions_that_exist() -> None:
    """Decision 033 names them without their packages; bare names are of `ReplicaFetcher`."""
    owners = {
        "FollowerEvents": FollowerEvents,
        "LogDirs": LogDirs,
        "Partition": Partition,
        "ReplicaFetcher": ReplicaFetcher,
        "follower_state": follower_state,
    }
    text = next(FOLDER.glob("033-*.md")).read_text()
    named = re.findall(rf"`(?:({'|'.join(owners)})\.)?(\w+)`", text)
    assert len(named) > 15
    missing = set()
    for owner, name in named:
        of = owners[owner or "ReplicaFetcher"]
        if not hasattr(of, name) and name not in getattr(of, "__slots__", ()):
            missing.add(name)
    assert missing == set()
