"""A run prints failures while it runs, open tests when it is ended, and both in the next run."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nodes import wait_until
from tests.suite import leftovers, processes
from tests.suite.inner_run import InnerRun, lines_until
from tests.suite.leftovers import OWNER

pytestmark = pytest.mark.slow

WAITS = """
import os, threading
from pathlib import Path

def test_waits():
    Path(os.environ["FOLDER"], f"waits-{os.getpid()}").touch()
    threading.Event().wait()
"""
FAILS = """
def test_fails():
    print("printed before the failure")
    assert 1 == 2
"""
LEAVES = """
import os, subprocess, sys
from pathlib import Path

import pytest

@pytest.mark.slow
def test_leaves(tmp_path):
    command = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    left = subprocess.Popen(command, start_new_session=True)
    Path(os.environ["FOLDER"], "left").write_text(str(left.pid))
"""
MARKERS = """
def pytest_configure(config):
    for name in ("slow", "conformance"):
        config.addinivalue_line("markers", name)
"""


@pytest.fixture
def inner(tmp_path: Path) -> InnerRun:
    run = InnerRun(tmp_path / "inner")
    run.write("conftest.py", MARKERS)
    return run


def test_a_failure_is_printed_while_other_tests_run_and_a_terminated_run_names_them(
    inner: InnerRun,
) -> None:
    inner.write("test_a.py", FAILS)
    inner.write("test_b.py", WAITS)
    with inner.start() as run:
        printed = lines_until(run, "-- Captured stdout call")
        assert "FAILED test_a.py::test_fails, failure 1" in printed
        assert "assert 1 == 2" in printed
        inner.wait_running("test_waits")
        run.send_signal(signal.SIGTERM)
        rest = run.communicate()[0]
    _, said, names = rest.partition("interrupted while these tests were running:\n")
    assert said
    assert "  test_b.py::test_waits\n" in names
    assert "1 failed" in rest


def test_the_first_failure_with_x_ends_the_other_processes(inner: InnerRun) -> None:
    inner.write("test_a.py", WAITS)
    inner.write(
        "test_b.py",
        "from tests.nodes import wait_until\nfrom pathlib import Path\nimport os\n"
        "def test_fails():\n"
        "    wait_until(lambda: list(Path(os.environ['FOLDER']).glob('waits-*')))\n"
        "    assert 1 == 2\n",
    )
    printed = inner.output("-x")
    assert "FAILED test_b.py::test_fails" in printed
    (waited,) = inner.folder.glob("waits-*")
    assert processes.state(int(waited.name.partition("-")[2])) is None


@pytest.mark.skipif(processes.this_process() is None, reason="this system has no /proc")
def test_the_run_after_a_killed_one_says_what_ran_ends_what_it_left_and_begins_with_it(
    inner: InnerRun,
) -> None:
    inner.write("test_a.py", "def test_passes(): pass\n")
    inner.write("test_b.py", FAILS)
    inner.write("test_c.py", LEAVES)
    inner.write("test_d.py", WAITS)
    with inner.start(processes=1) as run:
        lines_until(run, "-- Captured stdout call")
        inner.wait_running("test_waits")
        run.kill()
    left = int((inner.folder / "left").read_text())
    assert processes.state(left) is not None
    (folder,) = inner.folder.glob("metaquorum-tests-*/*")

    inner.write("test_d.py", "def test_waits(): pass\n")
    printed = inner.output("-vv", processes=0)
    assert "it had failed: test_b.py::test_fails" in printed
    assert "it was running: test_d.py::test_waits" in printed
    assert f"now ended: {left}: " in printed
    assert f"now ended: {folder}" in printed
    assert not folder.exists()
    wait_until(lambda: (state := processes.state(left)) is None or state.is_zombie)
    ran = re.findall(r"^(\S+::\S+) ", printed, re.MULTILINE)
    assert set(ran[:2]) == {"test_b.py::test_fails", "test_d.py::test_waits"}
    assert set(ran[2:]) == {"test_a.py::test_passes", "test_c.py::test_leaves"}
    assert "left by these tests, and now ended" in printed  # the process of test_c


@pytest.mark.skipif(processes.this_process() is None, reason="this system has no /proc")
def test_only_processes_whose_owner_is_gone_are_ended() -> None:
    me = processes.this_process()
    assert me is not None
    with subprocess.Popen([sys.executable, "-c", ""]) as done:
        found = processes.state(done.pid)
    assert found is not None
    waits = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    later = processes.ProcessId(me.pid, me.started + 1)  # this pid, but of an earlier process
    started = {
        str(owner): subprocess.Popen(waits, env={OWNER: str(owner)})
        for owner in (me, later, found.id)
    }
    try:
        for process in started.values():  # until then a child has this process's environment
            wait_until(lambda pid=process.pid: OWNER in processes.environment(pid))
        ended = [int(each.partition(":")[0]) for each in leftovers.end_orphans()]
        assert {started[str(later)].pid, started[str(found.id)].pid} <= set(ended)
        assert started[str(me)].poll() is None
        assert started[str(me)].pid not in ended
    finally:
        for process in started.values():
            process.kill()
            process.wait()
