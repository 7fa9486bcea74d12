"""The Spark pipeline runs with pyspark, pyarrow and the codecs only."""

import json
import subprocess
import sys

import pytest

from metaquorum.client.producer import ProducerRecord
from metaquorum.client.socket_transport import connect
from metaquorum.wire.records.records import Codec
from tests.metaquorum.spark.topics import new_topic, send
from tests.nodes import PATIENCE_S, ROOT, Peer

READ = """
import importlib, json, pkgutil, sys

EXTRAS = {"fastavro", "google", "fsspec"}  # of what each is for, modules of their own
ABSENT = EXTRAS | {"trio", "pysyncobj", "msgpack", "click", "rich", "yaml", "h11"}
ABSENT |= {"pandas", "metaquorum.dataplane"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if {name, name.partition(".")[0]} & ABSENT:
            raise ModuleNotFoundError(f"{name} is not here", name=name)

sys.meta_path.insert(0, Absent())

import metaquorum.spark
for info in pkgutil.walk_packages(metaquorum.spark.__path__, "metaquorum.spark."):
    try:
        importlib.import_module(info.name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in EXTRAS:
            raise

from metaquorum.spark.options import ReadOptions
from metaquorum.spark.source import RangesReader

bootstrap, topic = sys.argv[1:]
reader = RangesReader(
    ReadOptions.parse({"kafka.bootstrap.servers": bootstrap, "subscribe": topic})
)
rows = [batch.num_rows for part in reader.partitions() for batch in reader.read(part)]
print(json.dumps([sum(rows), sorted(ABSENT & sys.modules.keys())]))
"""


@pytest.mark.conformance
def test_a_topic_is_read_where_nothing_of_a_node_is_installed(node: Peer) -> None:
    """Read with every codec, each a module of its own, and import all modules."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    with connect(node.bootstrap, timeout_s=PATIENCE_S) as cluster:
        topic = new_topic(cluster)
        for codec in Codec:
            send(cluster, topic, [ProducerRecord(b"value" * 100)] * 50, codec)
    done = subprocess.run(
        [sys.executable, "-c", READ, node.bootstrap, topic],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [50 * len(Codec), []]
