"""The journal of a test run: a file of JSON lines that is complete even if the run is killed.

`build/tests/<start>-<pid>.jsonl` has a line for the begin of the run, for each test that starts,
for each that ends (with its costs), for each failure, and for the end. The next run reads from it
which tests failed or were running, and how long each test took.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from metaquorum.wire.primitives.frozen import frozen
from tests.suite.processes import ProcessId, is_alive, this_process

# Another folder, for a run within a test of these plugins.
VARIABLE: Final = "METAQUORUM_TESTS_JOURNALS"
FOLDER: Final = Path(
    os.environ.get(VARIABLE) or Path(__file__).resolve().parents[2] / "build" / "tests"
)
KEPT: Final = 20  # journals of earlier runs


class Journal:
    """Writes the journal of this run."""

    def __init__(self, arguments: list[str], folder: Path = FOLDER) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{time.time_ns() // 1_000_000}-{os.getpid()}.jsonl"
        self._file = self.path.open("w")
        owner = this_process()
        self.add("begin", arguments=arguments, owner=None if owner is None else str(owner))
        for old in sorted(folder.glob("*.jsonl"))[:-KEPT]:
            old.unlink(missing_ok=True)

    def add(self, event: str, **values: Any) -> None:
        self._file.write(json.dumps({"event": event, "time": time.time(), **values}) + "\n")
        self._file.flush()  # to the system, which keeps it when this process is killed

    def close(self) -> None:
        self._file.close()


@frozen
class Run:
    """An earlier run, as its journal has it."""

    path: Path
    arguments: tuple[str, ...]
    owner: ProcessId | None
    failed: tuple[str, ...]
    running: tuple[str, ...]  # started, and neither ended nor failed
    tests: dict[str, dict[str, Any]]  # costs by name of the test
    programs: tuple[tuple[float, str, str, float], ...]
    end: dict[str, Any] | None  # None: the run was killed, or still runs

    @property
    def was_killed(self) -> bool:
        return self.end is None and not (self.owner and is_alive(self.owner))


def events_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal, but not a last line that was not written as a whole."""
    with path.open() as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                return
            if isinstance(event, dict) and "event" in event:
                yield event


def read(path: Path) -> Run:
    arguments: list[str] = []
    owner: ProcessId | None = None
    failed: dict[str, None] = {}
    running: dict[str, None] = {}
    tests: dict[str, dict[str, Any]] = {}
    programs: list[tuple[float, str, str, float]] = []
    end: dict[str, Any] | None = None
    for event in events_of(path):
        match event["event"]:
            case "begin":
                arguments, text = event["arguments"], event["owner"]
                owner = None if text is None else ProcessId.parse(text)
            case "start":
                running[event["name"]] = None
            case "test":
                running.pop(event["name"], None)
                tests[event["name"]] = event
            case "failed":
                failed[event["name"]] = None
            case "programs":
                programs += [tuple(used) for used in event["used"]]
            case "end":
                end = event
    return Run(
        path, tuple(arguments), owner, tuple(failed), tuple(running), tests, tuple(programs), end
    )


def earlier(folder: Path = FOLDER) -> list[Path]:
    """Return the journals of all runs, the newest first."""
    return sorted(folder.glob("*.jsonl"), reverse=True)
