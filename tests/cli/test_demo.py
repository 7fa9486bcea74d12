"""`make demo`, in its own folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nodes import ROOT, elsewhere

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="starts nodes of our own")

TIMEOUT_S = 800


def test_demo_kills_a_node_and_loses_nothing(tmp_path: Path) -> None:
    text, binary = tmp_path / "lines.txt", tmp_path / "binary"
    text.write_text("".join(f"line {number}\n" for number in range(50)))
    binary.write_bytes(os.urandom(3_000_000))
    done = subprocess.run(
        [sys.executable, "-m", "metaquorum.cli.demo", text, binary],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert re.search(r"SIGKILL to node \d", said)
    assert "96 of 96 records are acknowledged" in said
    assert said.count("the same bytes, each record once, in order") == 2
    rows = re.findall(r"^ +\d +\d +\d+ +[\d,]+ +([\d,]+) ", said, re.MULTILINE)
    assert [len(isr.split(",")) for isr in rows] == [3, 3, 3]
    assert "Traceback" not in done.stderr
