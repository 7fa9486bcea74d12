"""Runner of tasks in worker processes of this machine, at most `parallel` at a time.

Each process is a new interpreter, because a fork would copy the locks of threads. A process that
dies is replaced and its range is repeated, up to MAX_ATTEMPTS times.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from metaquorum.runtime.own_processes import own_command, own_environment
from metaquorum.spark.loader.errors import RunnerError
from metaquorum.spark.loader.runner import Failures, OnEvent
from metaquorum.spark.loader.table.range_result import MAX_RESULT_BYTES, RangeResult
from metaquorum.spark.loader.tasks.range_task import TaskProgress
from metaquorum.spark.loader.tasks.task_spec import (
    RangeTask,
    TaskContext,
    context_to_json,
    task_to_json,
)
from metaquorum.wire.primitives.frozen import frozen

MAX_ATTEMPTS: Final = 4  # spark.task.maxFailures
_MAX_LINE_BYTES: Final = 2 * MAX_RESULT_BYTES
# Removed from the environment of worker processes, which get credentials through a pipe.
_SECRET_VARIABLES: Final = ("MQ_PASSWORD", "MQ_REGISTRY_PASSWORD", "MQ_REGISTRY_TOKEN")
_END_TIMEOUT_S: Final = 10.0


@frozen
class Failure:
    text: str


class WorkerDiedError(Exception):
    """The worker process has ended without a result."""


class Worker:
    """A worker process with its input and output pipes."""

    def __init__(self, context: TaskContext) -> None:
        environment = {k: v for k, v in own_environment().items() if k not in _SECRET_VARIABLES}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a module of ours
                own_command("metaquorum.spark.loader.tasks.worker"),
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        except OSError as error:
            raise RunnerError(f"cannot start a worker process: {error.strerror}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self.send({"context": context_to_json(context)})

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, line: Mapping[str, Any]) -> None:
        try:
            self._input.write(json.dumps(line).encode() + b"\n")
            self._input.flush()
        except OSError:  # it is dead, which `receive` reports
            pass

    def receive(self) -> Mapping[str, Any]:
        line = self._output.readline(_MAX_LINE_BYTES)
        try:
            found = json.loads(line)
        except ValueError:  # the incomplete last line of a dead process
            found = None
        if not isinstance(found, dict):
            raise WorkerDiedError
        return found

    def end(self) -> None:
        """Send the end of the work and wait until the process exits; kill it after a timeout."""
        self.send({"end": True})
        self._close_input()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap()

    def kill(self) -> str:
        """Kill the process and return a phrase with its signal or exit code."""
        self._process.kill()
        self._close_input()
        code = self._reap()
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def interrupt(self) -> None:
        """Kill the process, so that a blocked `receive` returns. May be called in any thread."""
        self._process.kill()

    def _close_input(self) -> None:
        try:
            self._input.close()
        except OSError:
            pass

    def _reap(self) -> int:
        code = self._process.wait()
        self._output.close()
        return code


class ProcessRunner:
    """Runner in worker processes of this machine; `parallel` None: one for each CPU."""

    def __init__(self, parallel: int | None = None) -> None:
        self.parallel = parallel or os.cpu_count() or 1

    def run(self, context: TaskContext, tasks: Sequence[RangeTask], on_event: OnEvent) -> Failures:
        return _Run(context, tasks, min(self.parallel, len(tasks))).wait(on_event)


class _Run:
    """Threads, each with a process of its own, that take tasks off a queue."""

    def __init__(self, context: TaskContext, tasks: Sequence[RangeTask], count: int) -> None:
        self._context = context
        self._waiting = deque(tasks)
        self._events: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._is_stopping = False
        self._workers: list[Worker | None] = [None] * count
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(count)]
        self._problem: BaseException | None = None

    def wait(self, on_event: OnEvent) -> Failures:
        failures: dict[int, str] = {}
        for thread in self._threads:
            thread.start()
        try:
            running = len(self._threads)
            while running:
                event = self._events.get()
                if event is None:
                    running -= 1
                    continue
                index, what = event
                if isinstance(what, Failure):
                    failures[index] = what.text
                else:
                    on_event(index, what)
        except BaseException:
            self._interrupt()
            raise
        finally:
            for thread in self._threads:
                thread.join()
        if self._problem is not None:
            raise self._problem
        return failures

    def _interrupt(self) -> None:
        self._is_stopping = True
        self._waiting.clear()
        for worker in list(self._workers):
            if worker is not None:
                worker.interrupt()

    # In the threads

    def _work(self, number: int) -> None:
        try:
            while not self._is_stopping:
                try:
                    task = self._waiting.popleft()
                except IndexError:
                    break
                self._run_task(number, task)
            if (worker := self._workers[number]) is not None:
                self._workers[number] = None
                worker.end()
        except BaseException as error:  # noqa: BLE001 - it is raised where the run is waited for
            self._problem = error
            self._is_stopping = True
        finally:
            if (worker := self._workers[number]) is not None:
                worker.kill()
            self._events.put(None)

    def _run_task(self, number: int, task: RangeTask) -> None:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            worker = self._workers[number]
            if worker is None:
                worker = self._workers[number] = Worker(self._context)
            try:
                self._attempt(worker, task)
            except WorkerDiedError:
                self._workers[number] = None
                how = worker.kill()
                if self._is_stopping:
                    return
                if attempt == MAX_ATTEMPTS:
                    text = (
                        f"{task.range.name}: its worker process {how}, like {MAX_ATTEMPTS - 1} "
                        "others before it; see their output on stderr (signal 9 usually means "
                        "that memory ran out: use a lower --parallel)"
                    )
                    self._fail(task, text)
            else:
                return

    def _fail(self, task: RangeTask, text: str) -> None:
        """Report the failure, and start no further task."""
        self._is_stopping = True
        self._events.put((task.index, Failure(text)))

    def _attempt(self, worker: Worker, task: RangeTask) -> None:
        """Run the task until its result or failure. Raises WorkerDiedError if the worker dies."""
        worker.send({"task": task_to_json(task)})
        while True:
            line = worker.receive()
            if "progress" in line:
                self._events.put((task.index, TaskProgress(*line["progress"])))
            elif "failure" in line:
                self._fail(task, str(line["failure"]))
                return
            else:
                data = json.dumps(line.get("result")).encode()
                self._events.put((task.index, RangeResult.from_bytes(data)))
                return
