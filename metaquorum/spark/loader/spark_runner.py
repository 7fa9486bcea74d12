"""Runner of tasks on Spark's executors: one for each range, or `parallel` lanes of ranges.

Spark repeats a task if its executor or its Python process dies. With `local[*]` it does not: then
this module runs a new job for the remaining ranges, up to LOCAL_ATTEMPTS times.

Results are read from the output while the job runs, to report the progress by ranges. No rows pass
through the JVM.
"""

from __future__ import annotations

import heapq
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import pyspark
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from metaquorum.spark.loader.errors import RunnerError
from metaquorum.spark.loader.runner import Failures, OnEvent
from metaquorum.spark.loader.storage.interface import open_storage
from metaquorum.spark.loader.table.committed_table import Table
from metaquorum.spark.loader.table.layout import result_index
from metaquorum.spark.loader.tasks.spark_task import run_lanes
from metaquorum.spark.loader.tasks.task_spec import RangeTask, TaskContext

APP_NAME: Final = "mq-load"
LOCAL_ATTEMPTS: Final = 4  # as spark.task.maxFailures; local[*] itself tries once
LOOK_EVERY_S: Final = 1.0
OLDEST: Final = (4, 0)
NEWER_THAN_ALL: Final = (4, 4)
_MAX_REASON_CHARS: Final = 500


def check_spark() -> None:
    """Raise RunnerError unless pyspark has a supported version and Java is installed."""
    version = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if not OLDEST <= version < NEWER_THAN_ALL:
        raise RunnerError(
            f"pyspark {pyspark.__version__} is installed, but 4.0 to 4.3 are supported; "
            "run: pip install 'pyspark>=4.0,<4.4', or load with --local"
        )
    if SparkSession.getActiveSession() is None:
        _check_java()


def spark_session(master: str | None = None) -> SparkSession:
    """Return the active session of this process (e.g. that of spark-submit), or a new one.

    `master` None: the master in Spark's configuration, or else local[*]. Raises RunnerError if
    Spark cannot be started.
    """
    check_spark()
    active = SparkSession.getActiveSession()
    if active is not None and master is None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(APP_NAME)
    if master is not None:
        builder = builder.master(master)
    try:
        return builder.getOrCreate()
    except (PySparkException, OSError) as error:
        raise RunnerError(
            f"cannot start Spark: {first_line(str(error))}; see the output of Java above, or load "
            "with --local"
        ) from None


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    there = os.access(os.path.join(home, "bin", "java"), os.X_OK) if home else shutil.which("java")
    if not there:
        where = f"JAVA_HOME ({home}) has no bin/java" if home else "no java is installed"
        raise RunnerError(f"Spark needs Java 17 or newer, but {where}; install it, or use --local")


class SparkRunner:
    """Runner in a Spark session: `parallel` ranges at a time; None: limited by its cores only."""

    def __init__(self, session: SparkSession, parallel: int | None = None) -> None:
        self._session = session
        self._parallel = parallel

    def run(self, context: TaskContext, tasks: Sequence[RangeTask], on_event: OnEvent) -> Failures:
        spark_context = self._session.sparkContext
        master = spark_context.master or ""
        is_local = master.startswith("local") and "," not in master
        left = list(tasks)
        problem: BaseException | None = None
        watch = _Results(context, on_event)
        for _ in range(LOCAL_ATTEMPTS if is_local else 1):
            job = _Job(spark_context, context, lanes(left, self._parallel))
            problem = job.wait(watch)
            watch.look()
            left = [task for task in left if task.index not in watch.found]
            if problem is None:
                return job.failures
        if not left:
            return {}
        raise RunnerError(
            f"Spark could not run {len(left)} of {len(tasks)} ranges: {_reason(problem)}. Nothing "
            "was committed; finished ranges are kept, and the same command loads the rest"
        )


class SparkOnDemand:
    """Runner that starts its Spark session when there are tasks to run."""

    def __init__(self, master: str | None, parallel: int | None) -> None:
        """Create a runner. Raises RunnerError if pyspark or Java is missing."""
        check_spark()
        self._master = master
        self._parallel = parallel
        self._session: SparkSession | None = None

    def run(self, context: TaskContext, tasks: Sequence[RangeTask], on_event: OnEvent) -> Failures:
        if self._session is None:
            self._session = spark_session(self._master)
        return SparkRunner(self._session, self._parallel).run(context, tasks, on_event)

    def stop(self) -> None:
        if self._session is not None:
            self._session.stop()


def lanes(tasks: Sequence[RangeTask], count: int | None) -> list[list[RangeTask]]:
    """Return a lane for each range, or `count` lanes of similar size; each is a Spark task."""
    if count is None or count >= len(tasks):
        return [[task] for task in tasks]
    found: list[list[RangeTask]] = [[] for _ in range(count)]
    shortest = [(0, number) for number in range(count)]
    for task in sorted(tasks, key=_size, reverse=True):
        length, number = heapq.heappop(shortest)
        found[number].append(task)
        heapq.heappush(shortest, (length + _size(task), number))
    return found


def _size(task: RangeTask) -> int:
    range_ = task.range
    return range_.bytes_estimate if range_.bytes_estimate > 0 else range_.end - range_.start


class _Results:
    """Results in the output, reported to `on_event` once each."""

    def __init__(self, context: TaskContext, on_event: OnEvent) -> None:
        self._context = context
        self._on_event = on_event
        self._storage = open_storage(context.output, context.storage_options)
        self.found: set[int] = set()

    def look(self) -> None:
        for path in self._storage.list_files(self._context.staging):
            index = result_index(path)
            if index is None or index in self.found:
                continue
            result = Table(self._storage).result(self._context.staging, index)
            if result is not None:
                self.found.add(index)
                self._on_event(index, result)


class _Job:
    """A Spark job in a thread of its own, which can be cancelled."""

    def __init__(
        self, spark_context: Any, context: TaskContext, lanes_: Sequence[Sequence[RangeTask]]
    ) -> None:
        self.failures: dict[int, str] = {}
        self._spark = spark_context
        self._group = f"{APP_NAME} {context.staging.rpartition('/')[2]}"
        self._lanes = lanes_
        self._run_lanes = partial(run_lanes, context)
        self._problem: BaseException | None = None
        self._ended = threading.Event()

    def wait(self, watch: _Results) -> BaseException | None:
        """Wait for the end of the job, and return its error; None: it succeeded."""
        thread = InheritableThread(target=self._run, session=None)
        thread.start()
        try:
            while not self._ended.wait(LOOK_EVERY_S):
                watch.look()
        except BaseException:
            self._spark.cancelJobGroup(self._group)
            raise
        finally:
            thread.join()
        return self._problem

    def _run(self) -> None:
        try:
            self._spark.setJobGroup(self._group, "fetch ranges and write Parquet", True)
            data = self._spark.parallelize(self._lanes, len(self._lanes))
            for index, failure in data.mapPartitions(self._run_lanes).collect():
                if failure:
                    self.failures[index] = failure
        except Exception as error:  # noqa: BLE001 - `wait` returns it
            self._problem = error
        finally:
            self._ended.set()


def _reason(problem: BaseException | None) -> str:
    """Return the line of the first error in Spark's message; else the first line of it."""
    text = str(problem)
    errors = [
        line.strip()
        for line in text.splitlines()
        if re.match(r"\s*[\w.]*(Error|Exception|Lost|Exited)\b[\w.]*:", line)
    ]
    lines: Iterator[str] = iter(errors)
    return first_line(next(lines, text))


def first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:_MAX_REASON_CHARS] if lines else "no reason is given"
