"""The example of docs/howto/consume-transform-produce.md is exactly once, also after its crash."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from metaquorum.client.errors import BrokerError
from metaquorum.client.groups.blocking import BlockingGroupAdmin
from metaquorum.client.producer import Producer
from metaquorum.client.socket_transport import BlockingProducer
from tests.metaquorum.client.transactions.together import connected, new_topic, read, values
from tests.nodes import PATIENCE_S, ROOT, Peer, unique

PAGE = ROOT / "docs" / "howto" / "consume-transform-produce.md"
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
NUMBERS = ["1", "2", "3", "4", "5"]
SQUARES = ["1", "4", "9", "16", "25"]


def test_a_crash_between_produce_and_commit(with_transactions: Peer, tmp_path: Path) -> None:
    blocks = [text for text in BLOCKS if "invoices.py" in text]
    assert len(blocks) == 2
    with connected(with_transactions) as cluster:
        orders, invoices = new_topic(cluster), new_topic(cluster)
        BlockingProducer(Producer(cluster)).send(orders, values(*NUMBERS))
        group = unique("invoicing")
        run = runner(with_transactions.bootstrap, tmp_path, orders, invoices, group)
        # Two squares are committed, and two more belong to an open transaction.
        assert run(blocks[0]) == ["crashed", *SQUARES[:2], "---", *SQUARES[:4]]
        assert read(cluster, invoices) == SQUARES[:2]
        shown = run(blocks[1])
        assert shown[: len(SQUARES)] == SQUARES
        assert read(cluster, invoices) == SQUARES
        assert read(cluster, invoices, committed=False) == [*SQUARES[:4], *SQUARES[2:]]
        committed = BlockingGroupAdmin(cluster).committed_offsets([group])[group]
        assert not isinstance(committed, BrokerError)
        assert [each.offset for each in committed.values()] == [len(NUMBERS)]


def runner(
    bootstrap: str, folder: Path, orders: str, invoices: str, group: str
) -> Callable[[str], list[str]]:
    """Return a function that runs a block of the page with names of this test."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": path, "PYTHONPATH": str(ROOT), "MQ_BOOTSTRAP": bootstrap,
    }  # fmt: skip

    def run(text: str) -> list[str]:
        text = text.replace("127.0.0.1:9092", bootstrap).replace('"orders"', f'"{orders}"')
        text = text.replace('"invoices"', f'"{invoices}"')
        text = text.replace("consume invoices ", f"consume {invoices} ")
        text = text.replace("invoicing", group)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout.splitlines()

    return run
