"""Administration with kafkajs, sarama and franz-go, if Node.js or Go is installed.

The clients are installed from the registries of their languages into a folder of this run.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.nodes import PATIENCE_S, Peer, skip_without, unique
from wire.primitives.errors import ErrorCode

HERE = Path(__file__).resolve().parent
KAFKAJS = ("npm", "install", "--no-fund", "--no-audit", "--prefix", ".", "kafkajs@2.2.4")
INSTALL_TIMEOUT_S = 300
RUN_TIMEOUT_S = PATIENCE_S

pytestmark = pytest.mark.conformance


def installed(command: list[str], folder: Path) -> None:
    """Run an installation, or skip the test: the registry may be unreachable."""
    if shutil.which(command[0]) is None:
        skip_without(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        skip_without(f"{command[0]}: not within {INSTALL_TIMEOUT_S} s")
    if done.returncode:
        skip_without(f"{' '.join(command)}: {done.stderr[-300:]}")


def go_program(client: str, package: str, folder: Path) -> str:
    """Build a program of a Go client in `folder`, and return its path; skip the test if that fails.

    `client`: franz-go or sarama.
    """
    program = str(folder / "program")
    installed(["go", "build", "-o", program, f"./{package}"], HERE / client.replace("-", "_"))
    return program


def seen_by(command: list[str], **environment: str) -> Any:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_kafkajs(node: Peer, tmp_path: Path) -> None:
    installed(list(KAFKAJS), tmp_path)
    command = ["node", str(HERE / "kafkajs_admin.js"), node.bootstrap, unique("kafkajs")]
    assert seen_by(command, NODE_PATH=str(tmp_path / "node_modules")) == {
        "created": True,
        "partitions": 3,
        "fewer": "INVALID_PARTITIONS",
        "retention": "60000",
        "badConfig": "INVALID_CONFIG",
        "offsets": [["3", "5"]],
        "acls": "SECURITY_DISABLED",
        "left": False,
    }


def test_sarama(node: Peer, tmp_path: Path) -> None:
    program = go_program("sarama", "", tmp_path)
    seen = seen_by([program, node.bootstrap, unique("sarama")])
    assert "Invalid value soon for configuration retention.ms" in seen.pop("badConfig")
    assert seen == {
        "partitions": 3,
        "fewer": ErrorCode.INVALID_PARTITIONS,
        "retention": "60000",
        "flush": "7",
        "retentionAfter": "604800000",
        "offsets": [3, 5],
        "logs": 3,
        "scram": ErrorCode.RESOURCE_NOT_FOUND,
    }


def test_franz_go(node: Peer, tmp_path: Path) -> None:
    """franz-go also produces with every codec, and consumes the records."""
    program = go_program("franz-go", "", tmp_path)
    assert seen_by([program, node.bootstrap, unique("franz-go")]) == {
        "again": "TOPIC_ALREADY_EXISTS",
        "fewer": "INVALID_PARTITIONS",
        "flush": "DYNAMIC_TOPIC_CONFIG 7",
        "retention": "DEFAULT_CONFIG 604800000",
        "badConfig": "INVALID_CONFIG",
        "scram": "RESOURCE_NOT_FOUND",
        "acls": "SECURITY_DISABLED",
        "consumed": dict.fromkeys(["none", "gzip", "snappy", "lz4", "zstd"], 300),
        "inOrder": True,
        "offsets": [[30, 500], [0, 500], [0, 500]],
        "logs": [0, 1, 2],
    }
