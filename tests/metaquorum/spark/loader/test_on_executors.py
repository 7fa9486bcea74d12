"""Executors in processes of their own without metaquorum: two ways to install it there.

`local-cluster[2,1,1024]` starts a master and two workers as a real cluster has them. Executors run
an interpreter that has pyarrow and the codecs, links to those of this environment, and nothing of
this project; PYTHONPATH is empty.
"""

import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from importlib.metadata import distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from metaquorum.client.producer import ProducerRecord
from metaquorum.spark.loader import committed_files
from metaquorum.wire.records.records import Codec
from tests.metaquorum.spark.conftest import OPTIONS
from tests.metaquorum.spark.topics import filled_topic
from tests.nodes import PATIENCE_S, ROOT, Peer

pytestmark = pytest.mark.conformance

RECORDS = 3000
# Packages that the loader needs on executors, by import name.
NEEDED = ("pyarrow", "lz4", "zstandard", "crc32c", "cramjam")
# Folders of this checkout by what an installation calls them; there, `metaquorum/wire` is a link.
OURS = {"metaquorum": "metaquorum", "wire": "metaquorum/wire"}


def site_packages(environment: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment / "lib" / version / "site-packages"


@pytest.fixture(scope="module")
def bare(spark_options: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with the packages in NEEDED, without this project."""
    environment = tmp_path_factory.mktemp("bare") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    for name in NEEDED:
        for owner in packages_distributions()[name]:
            for path in distribution(owner).files or ():
                top = path.parts[0]
                target = site_packages(environment) / top
                if top != ".." and not target.exists():
                    target.symlink_to(Path(str(distribution(owner).locate_file(top))))
    python = environment / "bin" / "python"
    probe = [python, "-c", "import pyarrow.parquet, lz4, zstandard, crc32c, cramjam"]
    subprocess.run(probe, check=True, env=clean(), cwd=environment)
    done = subprocess.run(
        [python, "-c", "import metaquorum"], env=clean(), cwd=environment, capture_output=True
    )
    assert b"ModuleNotFoundError" in done.stderr
    return environment


@pytest.fixture(scope="module")
def topic(node: Peer) -> str:
    records = (ProducerRecord(b"value %d" % number) for number in range(RECORDS))
    return filled_topic(node.bootstrap, records, 2, Codec.LZ4)


def clean() -> dict[str, str]:
    left_out = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def submit(node: Peer, topic: str, output: Path, java: str, options: Sequence[str]) -> None:
    """`mq-load load` by spark-submit; the table has every record once."""
    found = find_spec("pyspark")
    assert found is not None
    environment = clean() | {
        "SPARK_HOME": str(Path(str(found.origin)).parent),
        OPTIONS: java,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(output.parent / "work"),
    }
    binaries = Path(sys.executable).parent
    script = subprocess.run(
        [binaries / "mq-load", "script"], check=True, capture_output=True, text=True
    ).stdout.strip()
    command = [
        *(binaries / "spark-submit", "--master", "local-cluster[2,1,1024]"),
        *("--driver-memory", "512m", "--executor-memory", "512m"),
        *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"),
        *("--conf", f"spark.pyspark.driver.python={sys.executable}"),
        *("--conf", f"spark.executor.extraJavaOptions={java}"),
        *options,
        *(script, "load", "--bootstrap", node.bootstrap, "--topic", topic),
        *("--output", output, "--min-ranges", "4", "--quiet"),
    ]
    done = subprocess.run(
        command,
        env=environment,
        cwd=output.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    values = []
    for path in committed_files(str(output)):
        values += pq.ParquetFile(path).read(["value"])["value"].to_pylist()
    assert len(values) == RECORDS
    assert set(values) == {b"value %d" % number for number in range(RECORDS)}


def test_a_zip_for_executors_that_have_pyarrow(
    node: Peer, topic: str, bare: Path, spark_options: str, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle.zip"
    mq_load = Path(sys.executable).with_name("mq-load")
    subprocess.run([mq_load, "bundle", bundle], check=True, env=clean(), cwd=tmp_path)
    python = f"spark.pyspark.python={bare / 'bin' / 'python'}"
    options = ["--py-files", str(bundle), "--conf", python]
    submit(node, topic, tmp_path / "table", spark_options, options)


def test_a_packed_environment(
    node: Peer, topic: str, bare: Path, spark_options: str, tmp_path: Path
) -> None:
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1, dereference=False) as tar:
        tar.add(bare, ".")
        for folder, name in OURS.items():
            inside = f"./{site_packages(bare).relative_to(bare)}/{name}"
            tar.add(ROOT / folder, inside, filter=without_caches_and_links)
    options = [
        *("--archives", f"{archive}#environment"),
        *("--conf", "spark.pyspark.python=./environment/bin/python"),
    ]
    submit(node, topic, tmp_path / "table", spark_options, options)


def without_caches_and_links(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if entry.issym() or entry.name.endswith("__pycache__") else entry
