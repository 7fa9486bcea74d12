"""Each item is in the ring of what it needs, and an item that starts more than that fails."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.suite import rings
from tests.suite.inner_run import InnerRun
from tests.suite.test_failures import MARKERS

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

QUICK = "tests/wire/test_any.py::test_any"


class Item:
    """An item with what the rings look at."""

    def __init__(self, nodeid: str, fixtures: tuple[str, ...], parameters: dict[str, Any]) -> None:
        self.nodeid = nodeid
        self.fixturenames = [*fixtures, *parameters]
        self.callspec = SimpleNamespace(params=parameters)
        self.markers: list[str] = []

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.markers.append(marker.name)

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None


@pytest.mark.parametrize(
    ("nodeid", "fixtures", "parameters", "ring"),
    [
        (QUICK, (), {}, "quick"),
        (QUICK, (), {"client": "kafka"}, "quick"),
        (QUICK, ("node",), {}, "test"),
        (QUICK, (), {"either": "ours"}, "test"),
        (QUICK, (), {"either": "kafka"}, "conformance"),
        (QUICK, ("own",), {"own": "kafka"}, "conformance"),
        (QUICK, ("kafka_tool",), {}, "conformance"),
        (QUICK, ("java_for_spark",), {}, "conformance"),
        ("tests/conformance/test_any.py::test_any", (), {"client": "kafka-python"}, "test"),
        ("tests/conformance/test_any.py::test_any", (), {"client": "franz-go"}, "conformance"),
        ("tests/test_any.py::test_any", (), {}, "test"),
    ],
)
def test_an_item_has_the_ring_of_what_it_needs(
    nodeid: str, fixtures: tuple[str, ...], parameters: dict[str, Any], ring: str
) -> None:
    item: Any = Item(nodeid, fixtures, parameters)
    rings.mark([item])
    assert rings.ring_of(item) == ring


@pytest.mark.conformance
def test_this_ring_may_start_everything() -> None:
    rings.check_program(["java"])


@pytest.mark.parametrize("program", ["kcat", "/usr/bin/java", str(rings.KAFKA_SCRIPTS / "tool")])
def test_this_ring_may_not_start_programs_of_other_languages(program: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="mark the test as `conformance`"):
        rings.check_program([program])
    rings.check_program(["mq-server"])


def test_an_item_that_starts_more_than_its_ring_permits_fails(tmp_path: Path) -> None:
    inner = InnerRun(tmp_path / "inner")
    inner.write("conftest.py", MARKERS)
    inner.write("test_starts.py", STARTS)
    printed = inner.output(processes=0)
    assert "Failed: starts java: mark the test as `conformance`" in printed
    failed = {line.split(" ")[1] for line in printed.splitlines() if line.startswith("FAILED")}
    assert failed == {
        "test_starts.py::test_quick",
        *(f"test_starts.py::test_slow_with[{each}]" for each in ("java", "/usr/bin/go", "kcat")),
    }
    assert "4 failed, 2 passed" in printed
