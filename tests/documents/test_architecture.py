"""docs/ARCHITECTURE.md is short, names what exists, and its three paths are those of the code.

Each path is played with a profile function on: on a real node of this machine, and on three nodes
of a simulated world, where followers and voters of other nodes take part. Every function that the
document names in a path must be called while its requests are answered.
"""

import importlib
import re
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

from metaquorum.wire.records.records import Codec
from tests.dataplane.replication.together import NODES, Together, run_together
from tests.dataplane.serving import batch_of, in_trio, serving
from tests.nodes import ROOT

DOCUMENT = ROOT / "docs" / "ARCHITECTURE.md"
TEXT = DOCUMENT.read_text()
MOST_LINES = 150
PATHS = ("produce", "fetch", "metadata change")
LEAST_FUNCTIONS = 8
TOPS = "wire|metaquorum|dataplane|cli|simulations|tests"
DOTTED = re.compile(rf"`((?:{TOPS})(?:\.\w+)+)`")


def resolved(name: str) -> object:
    """Return the module, or the attribute of one, that `name` is. Raises AttributeError if none."""
    parts = name.split(".")
    found: object = importlib.import_module(parts[0])
    for count, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[:count]))
            except ModuleNotFoundError:
                raise AttributeError(name) from None
        found = getattr(found, part)
    return found


def section(path: str) -> str:
    (found,) = re.findall(rf"^## The path of a {path}\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
    return str(found)


def functions_of(path: str) -> list[str]:
    names = dict.fromkeys(DOTTED.findall(section(path)))
    return [name for name in names if callable(resolved(name))]


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= MOST_LINES


def test_its_table_of_packages_is_that_of_the_contracts() -> None:
    rows = {
        package.strip("`/").replace("/", "."): [cell.strip() for cell in lowest_first.split(",")]
        for package, lowest_first in re.findall(
            r"^\| (`[a-z/]+`) \| [^|]+ \| ((?:[^|]|\\\|)+) \|$", TEXT, re.M
        )
        if "," in lowest_first
    }
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    for contract in settings["contracts"]:
        for package in contract.get("containers", ()):
            package = package if package in rows else package.removeprefix("metaquorum.")
            if package in rows:
                layers = [one.replace("|", r"\|") for one in reversed(contract["layers"])]
                left_out = {"__main__"}  # the commands
                assert rows.pop(package) == [one for one in layers if one not in left_out]
    assert rows == {}


def test_every_name_in_it_can_be_imported() -> None:
    names = DOTTED.findall(TEXT)
    assert len(names) > len(PATHS) * LEAST_FUNCTIONS
    for name in names:
        resolved(name)


def test_a_name_that_does_not_exist_is_noticed() -> None:
    assert resolved("metaquorum.dataplane.partition.partition.Partition.appended")
    for name in (
        "metaquorum.dataplane.absent",
        "metaquorum.dataplane.partition.partition.Partition.absent",
    ):
        with pytest.raises(AttributeError):
            resolved(name)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_names_functions(path: str) -> None:
    assert len(functions_of(path)) >= LEAST_FUNCTIONS


class Calls:
    """The functions that were called during each path, by their dotted names."""

    def __init__(self) -> None:
        self.of: dict[str, set[str]] = {path: set() for path in PATHS}
        self._now: set[str] | None = None

    @contextmanager
    def during(self, path: str) -> Iterator[None]:
        self._now = self.of[path]
        try:
            yield
        finally:
            self._now = None

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if self._now is not None and event == "call":
            module = frame.f_globals.get("__name__", "")
            self._now.add(f"{module}.{frame.f_code.co_qualname}")

    @contextmanager
    def recording(self) -> Iterator[None]:
        before = sys.getprofile(), threading.getprofile()
        threading.setprofile(self.profile)
        sys.setprofile(self.profile)
        try:
            yield
        finally:
            sys.setprofile(before[0])
            threading.setprofile(before[1])


def play_on_this_machine(calls: Calls, folder: Path) -> None:
    @in_trio
    async def play() -> None:
        # A quota that is not exceeded, so that requests are counted.
        async with serving(folder, quota_producer_default=1 << 40) as node:
            client = await node.connect()
            with calls.during("metadata change"):
                await client.create("t")
            with calls.during("produce"):
                await client.produce("t", batch_of(b"small"))
                numbered = batch_of(b"numbered", producer_id=5, producer_epoch=0, base_sequence=0)
                await client.produce("t", numbered)
                await client.produce("t", batch_of(b"short", codec=Codec.GZIP))
                await client.produce("t", batch_of(b"x" * 100_000, codec=Codec.GZIP))
            with calls.during("fetch"):
                await client.fetch("t")
            for _ in range(2):
                await client.produce("t", batch_of(b"x" * 500_000))
            with calls.during("fetch"):
                await client.fetch("t", 3, partition_max_bytes=2 << 20)

    play()


def play_in_simulation(calls: Calls) -> None:
    async def scenario(cluster: Together) -> None:
        with calls.during("metadata change"):
            for node_id in NODES:  # at least two are not the active controller
                client = await cluster.connect(node_id)
                await client.create(f"of-{node_id}")
        await cluster.create("t")
        leader = cluster.state("t", 1).leader
        client, consumer = await cluster.connect(leader), await cluster.connect(leader)
        with calls.during("produce"):
            await client.produce("t", batch_of(b"replicated"))
        with calls.during("fetch"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: consumer.fetch("t", 1, max_wait_ms=5_000))
                await cluster.world.sleep(0.2)
                await client.produce("t", batch_of(b"awaited"))

    run_together(scenario)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Calls:
    found = Calls()
    with found.recording():
        play_on_this_machine(found, tmp_path_factory.mktemp("node"))
        play_in_simulation(found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_the_functions_of_a_path_are_called(path: str, calls: Calls) -> None:
    called = calls.of[path]
    assert [name for name in functions_of(path) if name not in called] == []


@pytest.mark.slow
def test_a_function_that_is_not_called_is_noticed(calls: Calls) -> None:
    name = "metaquorum.dataplane.handlers.fetch.full_fetch.FullFetch.answer"
    assert name in calls.of["fetch"]
    assert name not in calls.of["metadata change"]
