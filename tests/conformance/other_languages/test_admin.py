"""Administration with kafkajs, sarama and franz-go, if Node.js or Go is installed."""

import json
import os
import subprocess
from typing import Any

import pytest

from metaquorum.wire.primitives.errors import ErrorCode
from tests.conformance.other_languages.programs import HERE, go_program, kafkajs
from tests.nodes import PATIENCE_S, Peer, unique

RUN_TIMEOUT_S = PATIENCE_S

pytestmark = pytest.mark.conformance


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


def test_kafkajs(node: Peer) -> None:
    modules = kafkajs()
    command = ["node", str(HERE / "kafkajs_admin.js"), node.bootstrap, unique("kafkajs")]
    assert seen_by(command, NODE_PATH=str(modules)) == {
        "created": True,
        "partitions": 3,
        "fewer": "INVALID_PARTITIONS",
        "retention": "60000",
        "badConfig": "INVALID_CONFIG",
        "offsets": [["3", "5"]],
        "acls": "SECURITY_DISABLED",
        "left": False,
    }


def test_sarama(node: Peer) -> None:
    program = go_program("sarama", "")
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


def test_franz_go(node: Peer) -> None:
    """franz-go also produces with every codec, and consumes the records."""
    program = go_program("franz-go", "")
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
