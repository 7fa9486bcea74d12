"""`tests/peers/profile`: its C program answers the bench's clients, and its table is complete."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nodes import ROOT, free_ports

WITHIN_S = 240  # it waits for what other processes do, which may end
PROFILE = ROOT / "tests" / "peers" / "profile"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and uses epoll"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc"),
]


def profile(*arguments: str) -> str:
    pytest.importorskip("confluent_kafka")
    port = str(free_ports(range(1, 123)))
    done = subprocess.run(
        [PROFILE, "--port", port, "--seconds", "0.1", *arguments],
        env=os.environ | {"BIN": str(Path(sys.executable).parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_limit_answers_requests_producers_and_consumers() -> None:
    rows = [
        "requests x1 on one CPU", "requests x16", "requests x16 acks=all",
        "produce rdk 1KB", "consume rdk 1KB",
    ]  # fmt: skip
    lines = profile("--limit-only", *rows).splitlines()
    assert len(lines) == len(rows)
    for row, line in zip(rows, lines, strict=True):
        pwrite = r" \(pwrite [\d.]+\)" if row.startswith("produce") else ""
        shown = rf"round 1 {row}: ([\d.]+) us{pwrite} by \w+, ([\d.]+) epoll_wait.*"
        found = re.fullmatch(shown, line)
        assert found is not None, line
        assert float(found[1]) > 0
        assert float(found[2]) > 0


def test_the_table_says_where_the_time_of_three_nodes_goes() -> None:
    table = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", profile("requests x1 acks=all"), re.M))
    for part in ("send", "pwrite", "fetch and replication", "log append and read", "handler"):
        assert table[part] != "-", table
    other = re.search(r"\((\d+)%\)", table["other"])
    assert other is None or int(other[1]) <= 5, table
    assert float(table["**all**"].strip("*")) > float(table["limit (C)"])
