"""mq-load as a process, and the processes it starts."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from metaquorum.spark.loader.storage.local_storage import LocalStorage
from metaquorum.spark.loader.table.committed_table import Table
from metaquorum.spark.loader.table.layout import LOADING_FOLDER, result_index
from tests.nodes import PATIENCE_S, ROOT, heed_interrupts, wait_until


class LoadProcess:
    """`mq-load load`, with what it prints in files."""

    def __init__(self, folder: Path, arguments: Sequence[object], **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.stdout, self.stderr = folder / "stdout", folder / "stderr"
        command = [sys.executable, "-m", "metaquorum.cli.load.main", "load", *map(str, arguments)]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=clean | environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                preexec_fn=heed_interrupts,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """kill -9, and so of its workers, which find that their input has ended."""
        workers = self.workers()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        wait_until(lambda: not any(is_running(pid) for pid in workers), what="workers that end")

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def workers(self) -> list[int]:
        """Return the processes that it started."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[1]) == self.pid and fields[0] != "Z":
                    found.append(int(entry.name))
        return found


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def results_in(output: Path) -> int:
    """Return the number of ranges of an unfinished load that have a result."""
    found = LocalStorage(str(output)).list_files(LOADING_FOLDER)
    return sum(result_index(path) is not None for path in found)


def is_committed(output: Path) -> bool:
    table = Table(LocalStorage(str(output)))
    return table.is_there() and table.listing().newest > 0
