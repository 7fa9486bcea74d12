"""`make spark-demo`: Spark loads a topic into Parquet files; the demo kills it and resumes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from metaquorum.cli.demo import base_port, run, say
from metaquorum.client.cluster import Cluster
from metaquorum.client.errors import BrokerError
from metaquorum.client.producer import Producer, ProducerRecord
from metaquorum.client.socket_transport import BlockingAdmin, BlockingProducer, connect
from metaquorum.client.values import NewTopic
from metaquorum.runtime.own_processes import own_command, own_environment
from metaquorum.spark.loader.load_report import LoadReport
from metaquorum.spark.loader.storage.local_storage import LocalStorage
from metaquorum.spark.loader.table.committed_table import Table
from metaquorum.spark.loader.table.layout import LOADING_FOLDER, result_index

NODES: Final = 3
DIR: Final = Path("mq-spark-demo")
OUTPUT: Final = DIR / "lines"
REPORT: Final = DIR / "report.html"
LOG: Final = DIR / "load.log"
TOPIC: Final = "lines"
PARTITIONS: Final = 3
RECORDS_PER_RANGE: Final = 2500
KILLED_AT: Final = 5  # ranges that have a result
TIMEOUT_S: Final = 100.0
LOOK_AGAIN_S: Final = 0.02
# Spark without its web server and progress bar, and with little memory.
SUBMIT_ARGUMENTS: Final = (
    "--driver-memory 1g --conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false "
    "--conf spark.driver.host=127.0.0.1 pyspark-shell"
)
QUERY: Final = """
SELECT get_json_object(CAST(value AS STRING), '$.package') AS package,
       count(*) AS lines, min(offset) AS first_offset, max(offset) AS last_offset
FROM lines GROUP BY package ORDER BY lines DESC
"""


def fail(sentence: str) -> int:
    print(f"spark-demo: {sentence}", file=sys.stderr)
    return 2


def cluster(verb: str, *arguments: str, shown: bool = True) -> str:
    where = ["--dir", str(DIR)]
    return run(
        "metaquorum.cli.server.main", "mq-server", "cluster", verb, *arguments, *where, shown=shown
    )


@contextmanager
def running_nodes() -> Iterator[str]:
    """Run three nodes while the block runs. Yields their bootstrap addresses."""
    if (DIR / "cluster.json").exists():
        new = ["--keep"]
    else:
        new = ["--nodes", str(NODES), "--base-port", str(base_port())]
    try:
        said = cluster("start", *new)
        yield said.rpartition("bootstrap ")[2].strip()
    finally:
        cluster("stop", shown=False)


def lines() -> Iterator[ProducerRecord]:
    """Yield a record for each line of this project's source: the file as key, JSON as value."""
    root = Path(__file__).resolve().parent.parent
    for package in ("wire", "metaquorum", "dataplane", "cli"):
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            for number, text in enumerate(path.read_text().splitlines(), 1):
                value = {"package": package, "file": name, "line": number, "text": text}
                yield ProducerRecord(json.dumps(value).encode(), name.encode())


def send(connected: Cluster) -> int:
    """Create the topic, send all lines, and return the number of acknowledged records."""
    made = BlockingAdmin(connected).create_topics([NewTopic(TOPIC, PARTITIONS, NODES)])[TOPIC]
    if isinstance(made, BrokerError) and made.code.name != "TOPIC_ALREADY_EXISTS":
        raise made
    appended = BlockingProducer(Producer(connected)).send(TOPIC, list(lines()))
    return sum(each.records for each in appended)


# The load that is killed


def results() -> int:
    found = LocalStorage(str(OUTPUT)).list_files(LOADING_FOLDER)
    return sum(result_index(path) is not None for path in found)


def committed() -> int:
    table = Table(LocalStorage(str(OUTPUT)))
    return table.listing().newest if table.is_there() else 0


def load_and_kill(bootstrap: str) -> bool:
    """Start a load and kill it; return whether it was killed before its commit."""
    before = committed()
    arguments = [
        *("load", "-b", bootstrap, "--topic", TOPIC, "--output", str(OUTPUT)),
        *("--master", "local[2]", "--max-records-per-range", str(RECORDS_PER_RANGE)),
    ]
    say(f"   $ mq-load {' '.join(arguments)}")
    with LOG.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - a module of ours
            [*own_command("metaquorum.cli.load.main"), *arguments],
            env=own_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    until = time.monotonic() + TIMEOUT_S
    try:
        while process.poll() is None and committed() == before and results() < KILLED_AT:
            if time.monotonic() > until:
                break
            time.sleep(LOOK_AGAIN_S)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return committed() == before


def show_leftovers() -> None:
    visible = len(list(OUTPUT.rglob("*.parquet")))
    say(f"   The driver was killed (SIGKILL) when {results()} ranges had been read and written.")
    say(f"   A reader of the folder {OUTPUT} sees {visible} Parquet files: nothing is committed.")


# The load again, and a query


def load_again(session: Any, bootstrap: str) -> LoadReport:
    import metaquorum.spark

    return metaquorum.spark.load(
        TOPIC,
        str(OUTPUT),
        bootstrap=bootstrap,
        max_records_per_range=RECORDS_PER_RANGE,
        spark=session,
    )


def show(report: LoadReport) -> None:
    missing = {reason.value: count for reason, count in report.missing.items()} or "none"
    say(
        f"   Load {report.version} is committed: {len(report.rows)} ranges, {report.records:,} "
        f"records, {report.file_bytes:,} bytes of Parquet; offsets without a record: {missing}."
    )
    run("metaquorum.cli.load.main", "mq-load", "report", str(OUTPUT), "--html", str(REPORT))
    say(f"   The report as an HTML page, with a bar for each range: {REPORT}")


def query(session: Any) -> int:
    """Query the table with Spark SQL, and return the number of distinct offsets."""
    frame = session.read.parquet(str(OUTPUT))
    frame.createOrReplaceTempView(TOPIC)
    say(f"   Spark SQL:{QUERY}")
    for row in session.sql(QUERY).collect():
        values = f"{row['lines']:>8,} {row['first_offset']:>8} {row['last_offset']:>8}"
        say(f"   {row['package']:<12}{values}")
    return int(frame.select("topic", "partition", "offset").distinct().count())


def query_duckdb() -> None:
    try:
        import duckdb
    except ImportError:
        say("   (DuckDB can read the same folder, but is not installed.)")
        return
    statement = (
        'SELECT partition, count(*), min("offset"), max("offset") '  # noqa: S608 - our own folder
        f"FROM read_parquet('{OUTPUT}/topic=*/*/*.parquet') GROUP BY partition ORDER BY partition"
    )
    say(f"   DuckDB: {statement}")
    for row in duckdb.sql(statement).fetchall():
        say(f"   {row}")


def main() -> int:
    try:
        from metaquorum.spark.loader.spark_runner import spark_session
    except ImportError as error:
        return fail(f"{error.name} is not installed; run: make spark-demo")
    if not shutil.which("java") and not os.environ.get("JAVA_HOME"):
        return fail("Spark needs Java 17 or newer, but no java is installed")
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", SUBMIT_ARGUMENTS)
    DIR.mkdir(exist_ok=True)
    say(f"1. Three nodes start: three processes, their data in ./{DIR}")
    with running_nodes() as bootstrap:
        say("\n2. A producer sends each line of this project's source as a record")
        with connect(bootstrap, timeout_s=TIMEOUT_S) as connected:
            sent = send(connected)
        say(f"   All in-sync replicas acknowledged {sent:,} records.")
        say(f"\n3. Spark loads them into Parquet files, {RECORDS_PER_RANGE:,} in each range")
        if load_and_kill(bootstrap):
            show_leftovers()
        else:
            say("   The load was committed before it could be killed.")
        say("\n4. The same load again, from Python: metaquorum.spark.load(..., spark=session)")
        session = spark_session("local[2]")
        try:
            report = load_again(session, bootstrap)
            if report.version is not None:
                say(f"   It resumed the interrupted load: {'yes' if report.resumed else 'no'}.")
                show(report)
            say("\n5. A query on the table")
            distinct = query(session)
        finally:
            session.stop()
        query_duckdb()
    rows = sum(file.rows for _, file, _ in Table(LocalStorage(str(OUTPUT))).committed())
    say(f"\n   {rows:,} rows, {distinct:,} distinct offsets: the table has each record once.")
    say("   The nodes were stopped cleanly.")
    say(
        "   make spark-demo again sends the lines again, and loads the new records; "
        f"rm -r {DIR} deletes all data."
    )
    return 0 if rows == distinct >= sent else 1


if __name__ == "__main__":
    sys.exit(main())
