"""A run of pytest in a process of its own, with these plugins, for tests of them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.nodes import PATIENCE_S, ROOT, wait_until
from tests.suite import journal
from tests.suite.journal import VARIABLE
from tests.suite.leftovers import OWNER


class InnerRun:
    """Tests in a folder of their own; `start` runs them in two processes, or in one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def write(self, name: str, source: str) -> None:
        (self.folder / name).write_text(source)

    @contextmanager
    def start(self, *arguments: str, processes: int = 2) -> Iterator["subprocess.Popen[str]"]:
        """Start the run; kill it at the end of the block if it still runs."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PYTEST_") and name != OWNER
        }
        environment |= {
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.folder),
            VARIABLE: str(self.folder / "journals"),
            "FOLDER": str(self.folder),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", self.folder]
        command += ["-p", "tests.suite.plugin", "-p", "no:cacheprovider", "-n", str(processes)]
        with subprocess.Popen(
            [*map(str, command), *arguments, str(self.folder)],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as run:
            try:
                yield run
            finally:
                run.kill()

    def wait_running(self, test: str) -> None:
        """Wait until the run has heard that the test has started."""
        wait_until(lambda: any(test in name for name in self._last().running), what=test)

    def _last(self) -> journal.Run:
        return journal.read(journal.earlier(self.folder / "journals")[0])

    def output(self, *arguments: str, **options: Any) -> str:
        """Run the tests to their end; return what the run printed."""
        with self.start(*arguments, **options) as run:
            return run.communicate(timeout=PATIENCE_S)[0]


def lines_until(run: "subprocess.Popen[str]", text: str) -> str:
    """Return what the run has printed when a line with `text` appears. Raises AssertionError."""
    assert run.stdout is not None
    read = ""
    for line in run.stdout:
        read += line
        if text in line:
            return read
    raise AssertionError(f"{text!r} was not printed: {read}")
