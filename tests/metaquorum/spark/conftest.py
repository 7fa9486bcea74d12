"""One Spark session for all tests of a process, if PySpark and Java are installed.

The official connector's jars are added if they are available (tests/peers/spark/install, for
one version of PySpark), for comparison. METAQUORUM_SPARK_JARS names other jars, separated by
commas; if it is empty, no jars are added.
"""

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

import pytest

from tests.metaquorum.spark.stored_classes import java_command, reading, reading_or_storing
from tests.nodes import PATIENCE_S, ROOT, missing_for_java, unique, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA = 17
OPTIONS = "SPARK_SUBMIT_OPTS"  # Java's options for Spark's drivers
JARS = "METAQUORUM_SPARK_JARS"
CONNECTOR_SPARK = "4.2."  # the newest release with a connector
DRIVER_LOG = """
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c: %m%n%ex
"""


@functools.cache
def missing_for_spark() -> str:
    """Return the reason why Spark cannot run here; "" if it can."""
    if find_spec("pyspark") is None:
        return "pyspark is not installed"
    java = java_command()
    if java is None:
        return f"Spark needs Java {LEAST_JAVA} or newer, by JAVA_HOME or as a command"
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=PATIENCE_S
        )
    except OSError as error:
        return f"Spark needs Java {LEAST_JAVA} or newer: {java} cannot be run: {error.strerror}"
    found = re.search(r'version "(\d+)', done.stderr)
    if found is None:
        return f"Spark needs Java {LEAST_JAVA} or newer: {java} -version prints no version"
    if int(found[1]) < LEAST_JAVA:
        return f"Spark needs Java {LEAST_JAVA} or newer: {java} is Java {found[1]}"
    return ""


@functools.cache
def connector_jars() -> str:
    """Return the paths of the official connector's jars, separated by commas; "" without jars."""
    if JARS in os.environ:
        return os.environ[JARS]
    if (
        missing_for_spark()
        or missing_for_java()
        or not version("pyspark").startswith(CONNECTOR_SPARK)
    ):
        return ""
    done = subprocess.run([ROOT / "tests/peers/spark/install"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


@dataclass(frozen=True)
class SharedSpark:
    session: "SparkSession"
    logs: Path  # output of driver and executors, and the event log

    def logged(self) -> str:
        """Return the content of the file, from all queries so far."""
        mark = unique("mark")
        self.session.range(1).selectExpr(f"'{mark}'").collect()
        wait_until(lambda: mark in text_of(self.logs / "events"))
        return text_of(self.logs)


def text_of(folder: Path) -> str:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return "\n".join(path.read_text(errors="replace") for path in paths)


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSpark]:
    if reason := missing_for_spark():
        pytest.skip(reason)
    from pyspark.sql import SparkSession

    from metaquorum.spark.source import DefaultSource

    folder = tmp_path_factory.mktemp("spark")
    logs = folder / "logs"
    events = logs / "events"
    events.mkdir(parents=True)
    log4j = folder / "log4j2.properties"
    log4j.write_text(DRIVER_LOG.format(path=logs / "driver.log"))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.appName("tests")
        .master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log4j.as_uri()}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", events.as_uri())
        .config("spark.eventLog.compress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
    )
    if jars := connector_jars():
        builder = builder.config("spark.jars", jars)
    with reading_or_storing() as options:
        # Java starts here, and inherits both files.
        with printing_to(logs / "printed"), pytest.MonkeyPatch.context() as patch:
            patch.setenv(OPTIONS, f"{os.environ[OPTIONS]} {options}")
            session = builder.getOrCreate()
        if not any(info.name == "pyspark_metaquorum" for info in iter_modules()):
            session.dataSource.register(DefaultSource)  # not installed by make
        yield SharedSpark(session, logs)
        gateway = session.sparkContext._gateway
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # ends the JVM
        gateway.proc.wait(PATIENCE_S)


@pytest.fixture(scope="session")
def spark_options() -> str:
    """Return options for the JVMs of Spark that a test starts; skip without Spark."""
    if reason := missing_for_spark():
        pytest.skip(reason)
    return f"{os.environ[OPTIONS]} {reading()}"


@pytest.fixture(scope="session")
def spark(shared_spark: SharedSpark) -> "SparkSession":
    return shared_spark.session


@contextmanager
def printing_to(path: Path) -> Iterator[None]:
    """Redirect the output of processes started during the block into the file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    try:
        with path.open("ab") as file:
            for number in kept:
                os.dup2(file.fileno(), number)
        yield
    finally:
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)
