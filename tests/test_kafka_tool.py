"""`tests/peers/kafka/tool`, which runs Kafka's commands, with another program instead of Java."""

import os
import subprocess
from pathlib import Path

import pytest

TOOL = Path(__file__).parent / "peers" / "kafka" / "tool"
pytestmark = pytest.mark.conformance

_JAVA = '#!/bin/bash\nfor each; do [ "$each" = --list ] && echo "ran with $each"; done\nexit 0\n'


@pytest.mark.conformance
@pytest.mark.parametrize("is_writable", [True, False])
def test_a_command_runs_in_a_kafka_folder_that_is_not_writable(
    tmp_path: Path, is_writable: bool
) -> None:
    home = tmp_path / "kafka" / "9.9.9"
    home.mkdir(parents=True)
    (home / "ok").touch()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(_JAVA)
    java.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{java.parent}:{os.environ['PATH']}",
        "KAFKA_PEER_HOME": str(home.parent),
        "KAFKA_VERSION": home.name,
    }
    if not is_writable:  # a superuser may write to each folder, but not to this name
        number = subprocess.run(
            ["cksum"], input=f"{java.resolve()}\n", capture_output=True, text=True, check=True
        ).stdout.split()[0]
        (home / f"classes-{number}.jsa.lock").mkdir()
    ran = subprocess.run(
        [TOOL, "topics", "--bootstrap-server", "127.0.0.1:1", "--list"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ran with --list\n", "")
