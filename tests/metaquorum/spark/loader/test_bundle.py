"""The zip for Spark's --py-files: imported and used where metaquorum is not installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from metaquorum.client.producer import ProducerRecord
from metaquorum.spark.loader.bundle import write_bundle
from tests.metaquorum.spark.topics import filled_topic
from tests.nodes import PATIENCE_S, Peer

COUNT = 500
# An environment without metaquorum: of the packages installed here, only these.
DISTRIBUTIONS = (
    *("pyarrow", "crc32c", "cramjam", "lz4", "zstandard"),
    *("backports", "_cffi_backend", "cffi"),
)
PROGRAM = """
import sys
from metaquorum.spark.loader.tasks.range_task import load_range
from metaquorum.spark.cluster_access import open_cluster
from metaquorum.spark.options import ReadOptions
from metaquorum.spark.planning import make_plan
from metaquorum.spark.range_reader import RangeReader
import metaquorum, metaquorum.spark.loader.coordinator, metaquorum.wire.records.records

for module in (metaquorum, metaquorum.wire):
    assert "bundle.zip" in module.__file__, module.__file__
for name in ("trio", "pysyncobj", "msgpack", "click", "rich", "pyspark"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} can be imported: this shows nothing")
given = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2]}
options = ReadOptions.parse(given)
with open_cluster(options.fetch.connecting) as cluster:
    (range_,) = make_plan(cluster, options).ranges
    reader = RangeReader(cluster, range_, options.fetch)
    values = [value for batch in reader for value in batch.column("value").to_pylist()]
print(len(values), values[-1])
"""

pytestmark = pytest.mark.slow


def test_the_bundle_reads_a_topic_by_itself(node: Peer, tmp_path: Path) -> None:
    topic = filled_topic(
        node.bootstrap, (ProducerRecord(b"value %d" % number) for number in range(COUNT))
    )
    bundle = tmp_path / "bundle.zip"
    write_bundle(str(bundle))
    import pyarrow

    installed = Path(pyarrow.__file__).parent.parent
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in installed.iterdir():
        if path.name.split(".")[0] in DISTRIBUTIONS:
            (packages / path.name).symlink_to(path)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", PROGRAM, node.bootstrap, topic],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": os.pathsep.join((str(bundle), str(packages)))},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{COUNT} {b'value 499'}"


def test_the_same_code_makes_the_same_bundle(tmp_path: Path) -> None:
    write_bundle(str(tmp_path / "one.zip"))
    write_bundle(str(tmp_path / "two.zip"))
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
