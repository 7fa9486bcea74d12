"""The examples of docs/howto/consume-with-a-group.md deliver at least, or at most, once."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from metaquorum.client.groups.blocking import BlockingGroupAdmin
from metaquorum.client.producer import Producer, ProducerRecord
from metaquorum.client.socket_transport import BlockingAdmin, BlockingProducer, connect
from metaquorum.client.values import NewTopic
from tests.nodes import PATIENCE_S, ROOT, Peer, unique, wait_until

PAGE = ROOT / "docs" / "howto" / "consume-with-a-group.md"
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("name", "processed"),
    [("at-least-once", "1 2 3 1 2 3 4 5"), ("at-most-once", "1 2 3")],
)
def test_a_crash_between_processing_and_commit(
    name: str, processed: str, with_groups: Peer, tmp_path: Path
) -> None:
    topic = unique("payments")
    with connect(with_groups.bootstrap, timeout_s=PATIENCE_S) as cluster:
        admin = BlockingAdmin(cluster)
        admin.create_topics([NewTopic(topic, 1, 1)])
        wait_until(lambda: topic in [each.name for each in admin.topics()])
        values = [ProducerRecord(b"%d" % number) for number in range(1, 6)]
        BlockingProducer(Producer(cluster)).send(topic, values)
        group = unique("g")
        blocks = [text for text in BLOCKS if "at_least_once.py" in text]
        assert len(blocks) == 2
        for text in blocks[: 1 if name == "at-least-once" else 2]:
            run(text, tmp_path, with_groups.bootstrap, topic, group)
        assert (tmp_path / f"{name}.txt").read_text().split() == processed.split()
        # All five are committed in both cases: a later run repeats nothing.
        (offset,) = (
            BlockingGroupAdmin(cluster).committed_offsets([group + name])[group + name].values()
        )  # type: ignore[union-attr]
        assert offset.offset == 5


def run(text: str, folder: Path, bootstrap: str, topic: str, group: str) -> None:
    """Run a block of the page, with a topic and a group of this test."""
    text = textwrap.dedent(text).replace("127.0.0.1:9092", bootstrap).replace("payments", topic)
    text = text.replace('    "at-least-once",', f'    "{group}at-least-once",')
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0] == "crashed"
    assert "Traceback" not in done.stderr
