"""Checks of the whole project."""

import functools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from metaquorum.config.definition import ConfigKey
from metaquorum.config.registry import TOPIC_KEYS, WORKER_KEYS
from tests.nodes import ROOT

TEXT_SUFFIXES = {"", ".md", ".py", ".toml", ".txt", ".xml", ".properties", ".cfg", ".yml", ".yaml"}
TOP_LEVEL = {
    *(".ci", ".gitignore", ".pre-commit-config.yaml"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "pyproject.toml"),
    *("cli", "dataplane", "docs", "metaquorum", "simulations", "tests", "wire"),
}
# Absolute paths of a developer's machine.
MACHINE_PATHS = re.compile(r"(?<![\w.~$}])/(?:home|root|Users|work|workspace|mnt)/[A-Za-z]")


@functools.cache
def project_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_the_top_level_holds_what_is_meant_to_be_there() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in project_files()} == TOP_LEVEL


@pytest.mark.parametrize(
    ("document", "least"), [("docs/ARCHITECTURE.md", 40), ("CONTRIBUTING.md", 30)]
)
def test_every_path_that_a_guide_names_exists(document: str, least: int) -> None:
    text = (ROOT / document).read_text()
    tops = "|".join(sorted(path.name for path in ROOT.iterdir() if path.is_dir()))
    named = set(re.findall(rf"`((?:{tops})/[\w./-]*)`", text))
    assert len(named) > least
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_every_link_in_the_documents_leads_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_scripts_may_be_executed() -> None:
    scripts = [path for path in project_files() if path.read_bytes()[:2] == b"#!"]
    assert len(scripts) > 5
    assert [path for path in scripts if not os.access(path, os.X_OK)] == []


def test_imports_point_down_only() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "key",
    [*TOPIC_KEYS.values(), *WORKER_KEYS.values()],
    ids=lambda key: f"{key.scope.name}-{key.name}",
)
def test_every_config_is_documented(key: ConfigKey) -> None:
    assert len(key.doc.split()) >= 3
    assert key.doc.strip().endswith(".")


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    found = []
    for path in project_files():
        if path.suffix in TEXT_SUFFIXES and path != Path(__file__):
            try:
                lines = path.read_text().splitlines()
            except UnicodeDecodeError:
                continue
            found += [
                f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
                for number, line in enumerate(lines, 1)
                if MACHINE_PATHS.search(line)
            ]
    assert found == []


def test_one_name_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = settings["tool"]["setuptools"]["packages"]["find"]["include"]
    assert included == ["metaquorum*"]
