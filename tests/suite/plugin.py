"""The plugin that `tests/conftest.py` loads: it registers the others where they belong.

The controlling process of a run has the journal, and prints failures and costs. Each process that
runs tests (the same one without xdist) measures them.
"""

import gc
import os
from typing import Final

import pytest

from tests.suite import journal, processes
from tests.suite.costs import Costs, Meter
from tests.suite.failures import Failures, LastRun, NodeLogs
from tests.suite.leftovers import OWNER, Leftovers
from tests.suite.rings import ProgramRule
from tests.suite.scheduling import Order

# A collection of the youngest generation for each 10,000 new objects instead of Python's 700: they
# were a quarter of the work of tests without processes. A request of a test creates thousands.
GARBAGE_THRESHOLDS: Final = (10_000, 10, 10)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    plugins: list[object] = []
    is_worker = hasattr(config, "workerinput")
    if not is_worker and not config.option.collectonly:
        owner = processes.this_process()
        if owner is not None:
            os.environ[OWNER] = str(owner)
            plugins.append(Leftovers(config, owner))
        before = next(iter(journal.earlier()), None)
        written = journal.Journal([str(each) for each in config.invocation_params.args])
        plugins += [LastRun(before), Costs(config, written), Failures(config, written)]
    if is_worker or not config.getoption("numprocesses", None):
        plugins += [Meter(), NodeLogs(), ProgramRule()]
        gc.disable()  # until all items are known: almost all objects until then stay
    plugins.append(Order(config))
    for plugin in plugins:
        config.pluginmanager.register(plugin)


def pytest_collection_finish() -> None:
    """Exempt modules and test items from later garbage collections, which are many."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.enable()
