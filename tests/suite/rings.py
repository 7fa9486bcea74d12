"""The three rings of tests, each of which contains the ones before it.

quick         pure state, codecs, one simulated node: starts no process
test          all that needs Python alone: nodes and clusters as processes, Python's clients
conformance   programs of other languages, Spark, Apache Kafka itself, and what takes minutes

The markers `slow` and `conformance` move an item out of the inner rings. Fixtures do so as well, so
that the item `[kafka]` of a test belongs to `conformance` while its item `[ours]` does not. An item
that starts a process which its ring does not permit fails (`ProgramRule`).
"""

import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.suite.first_argument import IN_CLUSTER

# Folders with tests of the ring `quick`; all others are slow.
QUICK_FOLDERS: Final = ("tests/wire/", "tests/metaquorum/", "tests/dataplane/")
# Fixtures that start a process of this project, or simulate a cluster.
SLOW_FIXTURES: Final = frozenset(
    ("either", "node", "own", "start_node", "with_groups", "with_transactions", "peer", "three")
)
# Fixtures that start a JVM.
CONFORMANCE_FIXTURES: Final = frozenset(
    ("java", "java_for_spark", "kafka", "kafka_tool", "shared_spark", "spark", "spark_options")
)
# Parameters of fixtures that mean Apache Kafka.
KAFKA_PARAMETER: Final = "kafka"
# Parameters of any name that mean a client of another language.
OTHER_CLIENTS: Final = frozenset(("franz-go", "sarama", "kafkajs"))
# Tests that simulate a cluster (tests/dataplane/replication/together.py) are slow.
RUNS_CLUSTER: Final = "run_together"
# Programs that only the ring `conformance` may start.
OTHER_LANGUAGES: Final = frozenset(
    ("java", "javac", "jar", "mvn", "go", "node", "npm", "npx", "kcat", "spark-submit")
)
KAFKA_SCRIPTS: Final = Path(__file__).resolve().parents[1] / "peers" / "kafka"


def ring_of(item: pytest.Item) -> str:
    if item.get_closest_marker("conformance") is not None:
        return "conformance"
    return "test" if item.get_closest_marker("slow") is not None else "quick"


def mark(items: Iterable[pytest.Item]) -> None:
    """Add the markers that follow from the fixtures and parameters of each item."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if not CONFORMANCE_FIXTURES.isdisjoint(fixtures) or _is_with_others(item):
            item.add_marker(pytest.mark.conformance)
        elif not SLOW_FIXTURES.isdisjoint(fixtures) or _is_slow(item):
            item.add_marker(pytest.mark.slow)


def _is_slow(item: pytest.Item) -> bool:
    if not item.nodeid.startswith(QUICK_FOLDERS):
        return True
    return isinstance(item, pytest.Function) and (
        RUNS_CLUSTER in item.function.__code__.co_names or hasattr(item.function, IN_CLUSTER)
    )


def _is_with_others(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return False
    with_kafka = any(callspec.params.get(name) == KAFKA_PARAMETER for name in SLOW_FIXTURES)
    values = [value for value in callspec.params.values() if isinstance(value, str)]
    return with_kafka or not OTHER_CLIENTS.isdisjoint(values)


_rules: list["ProgramRule"] = []


def check_program(arguments: Any) -> None:
    """Raise pytest's failure if the ring of the running item forbids the program."""
    for rule in _rules:
        rule.check(arguments)


class ProgramRule:
    """Fails an item that starts a process which its ring does not permit."""

    def __init__(self) -> None:
        self._ring = "conformance"
        self._began = subprocess.Popen.__init__
        rule = self

        def started(process: Any, args: Any, *more: Any, **options: Any) -> None:
            rule.check(args)
            rule._began(process, args, *more, **options)

        subprocess.Popen.__init__ = started  # type: ignore[method-assign]
        _rules.append(self)

    def check(self, arguments: Any) -> None:
        """Raise pytest's failure if the ring of the running item forbids the program."""
        if self._ring == "conformance":
            return
        words = [arguments] if isinstance(arguments, str | bytes | os.PathLike) else arguments
        program = Path(os.fsdecode(next(iter(words), "")))
        if program.name in OTHER_LANGUAGES or KAFKA_SCRIPTS in program.parents:
            pytest.fail(f"starts {program.name}: mark the test as `conformance`")
        if self._ring == "quick":
            pytest.fail(f"starts {program.name}: mark the test as `slow`")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._ring = ring_of(item)
        try:
            return (yield)
        finally:
            self._ring = "conformance"
