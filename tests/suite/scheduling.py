"""The order of tests: failures of the last run first, then the longest modules.

A module runs in one process, so that its fixtures start once; a module that takes long is split
into its tests, or the last process would run it alone. All modules of a folder in TOGETHER run in
one process, because they share a fixture that takes seconds and hundreds of megabytes.
`long_modules.txt` has the seconds of the longest modules; `python -m tests.suite.scheduling` writes
it from the journals of this folder.
"""

from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, Final

import click
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.suite import journal

TABLE: Final = Path(__file__).parent / "long_modules.txt"
LEAST_S: Final = 2.0  # a shorter module is not in the table
SPLIT_S: Final = 15.0  # a longer module is split
JOURNALS: Final = 4
TOGETHER: Final = ("tests/metaquorum/spark/by_spark",)


def known_seconds() -> Counter[str]:
    """Return the wall seconds of modules, as known from the table."""
    seconds: Counter[str] = Counter()
    if TABLE.exists():
        for line in TABLE.read_text().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                seconds[name.strip()] = float(value)  # type: ignore[assignment]
    return seconds


def module_of(name: str) -> str:
    return name.partition("::")[0]


class Order:
    """Sorts the items; chooses the scheduler of the processes."""

    def __init__(self, config: pytest.Config, before: Path | None) -> None:
        worker_input = getattr(config, "workerinput", None)
        names = _unfinished(before) if worker_input is None else worker_input["first"]
        self._first = set(names)
        self._seconds = known_seconds()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["first"] = sorted(self._first)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        modules: dict[str, float] = {}
        for item in items:
            module = module_of(item.nodeid)
            if module not in modules:
                modules[module] = -self._seconds[module]
        items.sort(
            key=lambda item: (item.nodeid not in self._first, modules[module_of(item.nodeid)])
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        return Modules(config, log, self._seconds, self._first)


def _unfinished(path: Path | None) -> tuple[str, ...]:
    """Return the tests that failed in a run, or were running when it was killed."""
    if path is None:
        return ()
    run = journal.read(path)
    return (*run.failed, *(run.running if run.was_killed else ()))


class Modules(LoadScopeScheduling):  # type: ignore[misc]
    """Gives whole modules to the processes in the order of the items, and long modules by test."""

    def __init__(
        self, config: pytest.Config, log: Any, seconds: Counter[str], first: set[str]
    ) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._split = {module for module, taken_s in seconds.items() if taken_s > SPLIT_S}
        self._first = first
        self._indices: dict[str, int] = {}

    def _split_scope(self, nodeid: str) -> str:
        module = module_of(nodeid)
        folder = module.rpartition("/")[0]
        if folder in TOGETHER:
            return folder
        return nodeid if nodeid in self._first or module in self._split else module

    def _assign_work_unit(self, node: Any) -> None:
        # As the base class does, with one search in the collection instead of one for each test.
        if not self._indices:
            self._indices = {name: at for at, name in enumerate(self.registered_collections[node])}
        scope, unit = self.workqueue.popitem(last=False)
        self.assigned_work.setdefault(node, {})[scope] = unit
        node.send_runtest_some([self._indices[name] for name, done in unit.items() if not done])


@click.command(help="Write the table of long modules from the newest journals.")
def main() -> None:
    seconds: OrderedDict[str, float] = OrderedDict()
    for path in reversed(journal.earlier()[:JOURNALS]):
        of_run: Counter[str] = Counter()
        for test in journal.read(path).tests.values():
            of_run[module_of(test["name"])] += test["wall"]
        seconds.update(of_run)
    rows = sorted(seconds.items(), key=lambda item: -item[1])
    lines = [f"{name} {value:.0f}" for name, value in rows if value >= LEAST_S]
    TABLE.write_text("# Seconds of the longest modules of tests.\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
