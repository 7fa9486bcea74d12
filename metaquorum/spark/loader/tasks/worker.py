"""Worker process: loads ranges for a driver on the same machine; JSON lines in, JSON lines out.

    in    {"context": ...} once; then {"task": ...} for each range, after the result of the previous
          one; at the end {"end": true}
    out   {"progress": [position, records, bytes, throttled_ms]} at most every PROGRESS_EVERY_S
          {"result": ...} or {"failure": "a sentence"} for each range

The input has the password. If it ends without `end`, the driver is dead, and the worker exits.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

from metaquorum.client.errors import AdminError
from metaquorum.spark.errors import LoadError
from metaquorum.spark.loader.errors import LoaderError
from metaquorum.spark.loader.storage.interface import Storage, open_storage
from metaquorum.spark.loader.tasks.cluster_readers import cluster_readers
from metaquorum.spark.loader.tasks.range_task import OpenReader, TaskProgress, load_range
from metaquorum.spark.loader.tasks.task_spec import (
    RangeTask,
    TaskContext,
    context_from_json,
    task_from_json,
)
from metaquorum.wire.primitives.errors import KafkaError, WireError

PROGRESS_EVERY_S: Final = 0.25
# Errors that a range may cause; any other is a defect and ends the process with a traceback.
EXPECTED: Final = (LoadError, LoaderError, AdminError, KafkaError, WireError, OSError, ValueError)


class Output:
    """Lines for the driver; progress at most every PROGRESS_EVERY_S seconds."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._told_at = 0.0

    def send(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()

    def tell(self, progress: TaskProgress) -> None:
        now = time.monotonic()
        if now - self._told_at >= PROGRESS_EVERY_S:
            self._told_at = now
            figures = progress.position, progress.records, progress.bytes, progress.throttled_ms
            self.send({"progress": figures})


def lines_of(file: BinaryIO) -> queue.SimpleQueue[Mapping[str, Any]]:
    """Return a queue of the lines, filled by a thread that exits if the driver is dead."""
    found: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        for line in file:
            content = json.loads(line)
            found.put(content)
            if "end" in content:
                return
        os._exit(1)

    threading.Thread(target=read, name="driver-lines", daemon=True).start()
    return found


def run_one(
    storage: Storage,
    context: TaskContext,
    task: RangeTask,
    open_reader: OpenReader,
    output: Output,
) -> None:
    try:
        result = load_range(storage, context, task, open_reader, output.tell)
    except EXPECTED as error:
        output.send({"failure": str(error)})
    else:
        output.send({"result": json.loads(result.to_bytes())})


def main() -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C of the terminal; the driver ends its workers
    # Other output of this process must not mix with the lines for the driver.
    output = Output(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    lines = lines_of(sys.stdin.buffer)
    context = context_from_json(lines.get()["context"])
    storage = open_storage(context.output, context.storage_options)
    with cluster_readers(context.fetch.connecting) as open_reader:
        while "task" in (line := lines.get()):
            run_one(storage, context, task_from_json(line["task"]), open_reader, output)


if __name__ == "__main__":
    main()
