"""Processes of this machine as /proc shows them, also while they execute a program."""

import subprocess

import pytest

from tests.suite import processes

SPAWNED = 300


@pytest.mark.slow
@pytest.mark.skipif(processes.this_process() is None, reason="this system has no /proc")
def test_the_variables_of_a_process_that_has_just_begun_are_read() -> None:
    """Without another read, about one in 35 had none."""
    for number in range(SPAWNED):
        text = str(number)
        child = subprocess.Popen(["sleep", "60"], env={"NUMBER": text, "PATH": "/usr/bin:/bin"})
        try:
            assert processes.environment(child.pid).get("NUMBER") == text
        finally:
            child.kill()
            child.wait()
