"""mq-load on the command line: its output and exit codes."""

import io
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from google.protobuf import descriptor_pb2

from metaquorum.cli.load.main import main
from metaquorum.client.producer import ProducerRecord
from metaquorum.client.socket_transport import connect
from tests.cli.admin.running import environment
from tests.metaquorum.spark.loader.processes import LoadProcess
from tests.metaquorum.spark.topics import filled_topic, new_topic
from tests.nodes import PATIENCE_S, ROOT, Peer

BEGAN_MS = 1_700_000_000_000

pytestmark = pytest.mark.slow


class Load:
    """Runs mq-load in this process; the workers of a load are processes of their own."""

    def __init__(self, bootstrap: str = "", **more: str) -> None:
        given = {"MQ_BOOTSTRAP": bootstrap} if bootstrap else {}
        self.environment = environment(**given, **more)
        self.errors = ""

    def __call__(self, *arguments: object, code: int = 0) -> str:
        blank = {name: None for name in os.environ if name not in self.environment}
        done = CliRunner().invoke(
            main,
            [str(argument) for argument in arguments],
            env=blank | self.environment,
            prog_name="mq-load",
        )
        self.errors = done.stderr
        assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
        return done.stdout

    def json(self, *arguments: object) -> Any:
        return json.loads(self(*arguments, "--format", "json"))


@pytest.fixture(scope="module")
def topic(node: Peer) -> str:
    records = (ProducerRecord(b"value %d" % n, b"<k>", (), BEGAN_MS + n) for n in range(300))
    return filled_topic(node.bootstrap, records)


def local(topic: str, output: Path, *more: object) -> list[object]:
    return ["load", "--local", "--topic", topic, "--output", output, *more]


REFUSE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def without(
    packages: set[str], folder: Path, *arguments: object
) -> subprocess.CompletedProcess[str]:
    """Run mq-load, and the workers of a load, where the packages are not installed."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(REFUSE.format(refused=packages))
    return subprocess.run(
        [sys.executable, "-m", "metaquorum.cli.load.main", *map(str, arguments)],
        cwd=ROOT,
        env=environment(PYTHONPATH=f"{folder}{os.pathsep}{ROOT}"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def test_a_local_load_needs_pyarrow_and_no_spark(node: Peer, topic: str, tmp_path: Path) -> None:
    absent = {"pyspark", "py4j", "fsspec", "s3fs", "fastavro", "google", "numpy", "pandas"}
    where = ["--topic", topic, "--output", tmp_path / "table", "--bootstrap", node.bootstrap]
    done = without(absent, tmp_path / "site", "load", "--local", *where)
    assert done.returncode == 0, done.stderr
    assert len(pq.ParquetFile(next((tmp_path / "table").rglob("*.parquet"))).read()) == 300
    for arguments in (["report", tmp_path / "table"], ["files", tmp_path / "table"]):
        assert without(absent, tmp_path / "site", *arguments).returncode == 0
    done = without(absent, tmp_path / "site", "load", *where)
    assert done.returncode == 1
    assert done.stderr == (
        "mq-load: pyspark is not installed; run: pip install 'metaquorum[spark]', or load with "
        "--local, which does not need it\n"
    )


def test_extras_that_are_named_have_the_packages(tmp_path: Path) -> None:
    done = without({"pyarrow", "pyspark"}, tmp_path, *local("t", tmp_path), "-b", "127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr == (
        "mq-load: pyarrow is not installed; run: pip install 'metaquorum[parquet]' to load with "
        "--local, or 'metaquorum[spark]' to load with Spark\n"
    )
    with open(ROOT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert [each.partition(">")[0] for each in extras["parquet"]] == ["pyarrow"]
    assert {each.partition(">")[0] for each in extras["spark"]} == {
        "pyspark",
        "metaquorum[parquet]",
    }


def test_a_load_from_plan_to_report(node: Peer, topic: str, tmp_path: Path) -> None:
    mq_load = Load(node.bootstrap)
    output, page = tmp_path / "table", tmp_path / "report.html"
    sized = ["--max-records-per-range", 100]
    plan = mq_load.json("plan", "--topic", topic, "--output", output, *sized)
    assert [(row["start"], row["end"]) for row in plan["ranges"]] == [
        (0, 100),
        (100, 200),
        (200, 300),
    ]
    assert plan["bytes"] > 0
    assert plan["estimated_seconds"] >= 0
    assert not output.exists()
    dry = mq_load(*local(topic, output, *sized, "--dry-run"))
    assert re.search(rf"{topic}-0 +100 +200 +100 ", dry)
    assert not output.exists()
    said = mq_load(*local(topic, output, *sized, "--html", page))
    assert re.search(rf"{topic}-0 +100 +200 +100 +1200 +100 +199 ", said)
    report = mq_load.json("report", output)
    assert report["totals"]["records"] == 300
    assert [row["first_offset"] for row in report["ranges"]] == [0, 100, 200]
    files = mq_load("files", output).splitlines()
    assert files == mq_load.json("files", output)
    assert files == [str(output / row["file"]["path"]) for row in report["ranges"]]
    assert all(Path(path).is_file() for path in files)
    assert mq_load(*local(topic, output)).startswith("Nothing to load")
    assert mq_load.json(*local(topic, output))["load"] is None
    again = mq_load.json("plan", "--topic", topic, "--output", output)
    assert again["ranges"] == []
    assert page.read_text().count("<section>") == 3


@pytest.mark.parametrize(
    ("more", "code", "sentence"),
    [
        (("--from", "latest"), 2, "--from latest would load no record"),
        (("--from", "soon"), 2, "neither an offset nor a time"),
        (("--columns", "nothing"), 2, "column 'nothing' does not exist"),
        (("--columns", ""), 2, "the value is empty"),
        (("--value-schema", "x"), 2, "needs --value-format"),
        (("--value-format", "json"), 1, "the schema of kind json is empty"),
        (("--master", "local[1]"), 2, "--master is given"),
        (("--storage-options", "/nowhere/x"), 2, "cannot read /nowhere/x"),
        (("--username", "u"), 2, "SASL needs a password"),
        (("--topic", "not there"), 2, "is not a valid topic name"),
        (("--to", "500"), 1, "beyond the end of the log"),
    ],
)
def test_a_mistake_is_one_sentence(
    node: Peer, topic: str, tmp_path: Path, more: tuple[str, ...], code: int, sentence: str
) -> None:
    mq_load = Load(node.bootstrap)
    mq_load(*local(topic, tmp_path / "table", *more), code=code)
    assert sentence in mq_load.errors
    assert "Traceback" not in mq_load.errors


def test_lost_records_are_allowed_by_the_option_of_this_command(
    node: Peer, topic: str, tmp_path: Path
) -> None:
    mq_load = Load(node.bootstrap)
    wanted = local(topic, tmp_path / "table", "--to", "500")
    mq_load(*wanted, code=1)
    assert "or use --allow-data-loss to read those of the range that exist" in mq_load.errors
    assert "failOnDataLoss" not in mq_load.errors
    mq_load(*wanted, "--allow-data-loss")


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("ftp://host/x", "cannot create a file exclusively"),
        ("memory://x", "cannot create a file exclusively"),
        ("/proc/x", "choose an output where folders can be created"),
        ("/dev/null", "choose an output that is a folder"),
    ],
)
def test_an_output_that_will_not_do_is_one_sentence(
    node: Peer, topic: str, output: str, sentence: str
) -> None:
    mq_load = Load(node.bootstrap)
    mq_load("load", "--local", "--topic", topic, "--output", output, code=1)
    assert sentence in mq_load.errors
    assert mq_load.errors.startswith("mq-load: ")


def test_a_cluster_that_is_not_there_is_exit_code_3(tmp_path: Path) -> None:
    mq_load = Load("127.0.0.1:1")
    mq_load(*local("topic", tmp_path / "table"), code=3)
    assert mq_load.errors.startswith("mq-load: no broker could be reached")


def test_a_topic_that_is_not_there_is_named(node: Peer, tmp_path: Path) -> None:
    mq_load = Load(node.bootstrap)
    mq_load(*local("no-such-topic", tmp_path / "table"), code=1)
    assert "no-such-topic" in mq_load.errors


def test_reports_and_files_need_a_table(tmp_path: Path) -> None:
    mq_load = Load()
    for command in ("report", "files"):
        mq_load(command, tmp_path, code=1)
        assert "is not a table of mq-load" in mq_load.errors


class Page(HTMLParser):
    """Parser that collects the links and the texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[tuple[str, str | None]] = []
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [pair for pair in attrs if pair[0] in ("src", "href", "srcset")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_loads_nothing_and_quotes_what_others_named(
    node: Peer, topic: str, tmp_path: Path
) -> None:
    mq_load = Load(node.bootstrap)
    output = tmp_path / "<script>alert(1)</script>" / "table"
    page = tmp_path / "page.html"
    mq_load(*local(topic, output))
    mq_load("report", output, "--html", page)
    read = Page()
    read.feed(page.read_text())
    assert read.references == []
    assert "script" not in read.tags
    assert any(str(output) in text for text in read.texts)
    assert "url(" not in page.read_text()
    assert "prefers-color-scheme: dark" in page.read_text()


def test_an_empty_topic_is_nothing_to_load(node: Peer, tmp_path: Path) -> None:
    with connect(node.bootstrap, timeout_s=PATIENCE_S) as cluster:
        name = new_topic(cluster)
    assert Load(node.bootstrap)(*local(name, tmp_path / "table")).startswith("Nothing to load")


def test_a_bundle_has_what_executors_need(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    Load()("bundle", path)
    with zipfile.ZipFile(path) as bundle:
        names = set(bundle.namelist())
    assert {"metaquorum/spark/source.py", "metaquorum/wire/messages/fetch.py"} <= names
    assert "pyspark_metaquorum/__init__.py" in names
    assert not any(name.endswith((".so", ".pyc")) for name in names)
    tops = {name.split("/")[0] for name in names}
    assert tops == {"metaquorum", "pyspark_metaquorum"}
    for absent in ("raft", "controller", "storage", "rpc", "channel", "config", "dataplane", "cli"):
        assert not any(name.startswith(f"metaquorum/{absent}/") for name in names)


def test_a_bundle_cannot_be_written_anywhere(tmp_path: Path) -> None:
    mq_load = Load()
    mq_load("bundle", tmp_path / "no" / "bundle.zip", code=1)
    assert "cannot write" in mq_load.errors


@pytest.mark.conformance
def test_without_java_a_load_says_so_before_it_asks_anybody(tmp_path: Path) -> None:
    """In a process of its own, because this one may have a Spark session."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    arguments = ["-b", "127.0.0.1:1", "--topic", "t", "--output", tmp_path / "table"]
    process = LoadProcess(tmp_path / "process", arguments, JAVA_HOME=str(tmp_path))
    assert process.wait() == 1
    said = process.stderr.read_text()
    assert "Spark needs Java 17 or newer" in said
    assert "or use --local" in said
    assert "Traceback" not in said
    assert not (tmp_path / "table").exists()


def test_spark_submit_gets_a_file_of_python() -> None:
    path = Path(Load()("script").strip())
    assert path.suffix == ".py"
    done = subprocess.run(
        [sys.executable, path, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("mq-load, version ")


def test_avro_and_protobuf_values_become_columns(node: Peer, tmp_path: Path) -> None:
    avro = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(avro), {"id": 7})
    schema = tmp_path / "r.avsc"
    schema.write_text(json.dumps(avro))
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="p", syntax="proto3")
    kind = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
    label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    file.message_type.add(name="R").field.add(name="id", number=1, type=kind, label=label)
    descriptors = tmp_path / "r.pb"
    descriptors.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    for form, value, more in (
        ("avro", out.getvalue(), ["--value-schema", schema]),
        ("protobuf", b"\x08\x07", ["--value-schema", descriptors, "--value-message", "p.R"]),
    ):
        topic = filled_topic(node.bootstrap, map(ProducerRecord, (value, b"\xff\xff")))
        output = tmp_path / form
        arguments = ["--topic", topic, "--output", output, "--local", "--value-format", form]
        report = Load(node.bootstrap).json("load", *arguments, *more)
        assert [(one["records"], one["rejected"]) for one in report["ranges"]] == [(2, 1)]
        (path,) = output.glob("topic=*/partition=*/*.parquet")
        assert pq.ParquetFile(path).read(["id", "offset"]).to_pylist() == [{"id": 7, "offset": 0}]
        (path,) = (output / "_rejected").rglob("*.parquet")
        (row,) = pq.ParquetFile(path).read().to_pylist()
        assert (row["offset"], row["value"]) == (1, b"\xff\xff")
        assert row["reason"]
