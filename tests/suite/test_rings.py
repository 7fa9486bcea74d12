"""Each item is in the ring of what it needs, and an item that starts more than that fails."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.nodes import ROOT
from tests.suite.inner_run import InnerRun
from tests.suite.test_failures import MARKERS

pytestmark = pytest.mark.slow

COLLECTED = ("tests/metaquorum/client/test_quotas.py", "tests/dataplane/log/test_kafkas_dump.py")
STARTS = """
import subprocess, sys

import pytest

def test_quick():
    subprocess.run([sys.executable, "-c", ""], check=True)

@pytest.mark.slow
def test_slow():
    subprocess.run([sys.executable, "-c", ""], check=True)

@pytest.mark.slow
@pytest.mark.parametrize("program", ["java", "/usr/bin/go", "kcat"])
def test_slow_with(program):
    subprocess.run([program])

@pytest.mark.conformance
def test_conformance(tmp_path):
    program = tmp_path / "java"
    program.write_text("#!/bin/sh")
    program.chmod(0o755)
    subprocess.run([program], check=True)
"""


def collected(expression: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", "-n0", "--collect-only", "-m", expression]
    done = subprocess.run(
        [*command, *COLLECTED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_items_with_kafka_are_marked_and_not_whole_files() -> None:
    conformance, rest = collected("conformance"), collected("not conformance")
    assert conformance
    assert rest
    assert not conformance & rest
    assert all("ours" in name or "[" not in name for name in rest if COLLECTED[0] in name)
    assert {name for name in conformance | rest if "[kafka" in name} <= conformance
    assert {name for name in conformance | rest if COLLECTED[1] in name} <= conformance


def test_an_item_that_starts_more_than_its_ring_permits_fails(tmp_path: Path) -> None:
    inner = InnerRun(tmp_path / "inner")
    inner.write("conftest.py", MARKERS)
    inner.write("test_starts.py", STARTS)
    printed = inner.output(processes=0)
    assert "mark the test as `slow`" in printed
    assert printed.count("Failed: starts java: mark the test as `conformance`") >= 1
    failed = {line.split(" ")[1] for line in printed.splitlines() if line.startswith("FAILED")}
    assert failed == {
        "test_starts.py::test_quick",
        *(f"test_starts.py::test_slow_with[{each}]" for each in ("java", "/usr/bin/go", "kcat")),
    }
    assert "4 failed, 2 passed" in printed
