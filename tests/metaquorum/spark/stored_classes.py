"""Spark's Java classes, stored by one session for later JVMs, which then start in half the time.

The archive (class data sharing) is for one installation of PySpark and one Java, and takes 20 CPU
seconds to store. It is not stored by CI (CI=true), whose installation is new in each run.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

HOME: Final = Path(
    os.environ.get("SPARK_CLASSES_HOME", Path.home() / ".cache" / "mq-peers" / "spark-classes")
)
KEPT: Final = 3  # archives, of 190 MB each: those that were used last
WITHOUT_WARNINGS: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def java_command() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def archive() -> Path:
    """Return the path of the archive, which may not exist yet."""
    java, pyspark = java_command(), find_spec("pyspark")
    assert java is not None
    assert pyspark is not None
    assert pyspark.origin is not None
    installed = (Path(pyspark.origin).parent / "jars").stat().st_mtime_ns
    parts = f"{Path(java).resolve()} {pyspark.origin} {version('pyspark')} {installed}"
    return HOME / f"{hashlib.sha256(parts.encode()).hexdigest()[:16]}.jsa"


def reading() -> str:
    """Return options of Java with which it reads the archive; empty if none is stored yet."""
    path = archive()
    if not path.exists():
        return ""
    os.utime(path)
    return f"-XX:SharedArchiveFile={path} {WITHOUT_WARNINGS}"


@contextmanager
def reading_or_storing() -> Iterator[str]:
    """Yield options as `reading`; without an archive, those with which a JVM stores one at its end.

    The JVM must have ended by itself before the block is left. One process at a time stores.
    """
    path = archive()
    if os.environ.get("CI") == "true":
        yield reading()
        return
    HOME.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield reading()
            return
        if path.exists():
            yield reading()
            return
        new = path.with_suffix(".new")
        yield f"-XX:ArchiveClassesAtExit={new} {WITHOUT_WARNINGS}"
        if new.exists():
            new.replace(path)
            for old in sorted(HOME.glob("*.jsa"), key=lambda each: each.stat().st_mtime)[:-KEPT]:
                old.unlink(missing_ok=True)
