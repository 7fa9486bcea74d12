"""`make spark-demo`, in a folder of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.metaquorum.spark.conftest import OPTIONS, java_for_spark, spark_options
from tests.nodes import ROOT, elsewhere

TIMEOUT_S = 800

__all__ = ["java_for_spark", "spark_options"]

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(bool(elsewhere()), reason="starts nodes of our own"),
]


def test_the_demo_loads_each_record_once(spark_options: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "metaquorum.cli.spark_demo"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), OPTIONS: spark_options},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert "Traceback" not in done.stderr
    found = re.search(r"([\d,]+) rows, ([\d,]+) distinct offsets", said)
    assert found is not None
    assert found[1] == found[2]
    assert "sees 0 Parquet files" in said or "committed before it could be killed" in said
    page = (tmp_path / "mq-spark-demo" / "report.html").read_text()
    assert page.count("class=bar") == len(re.findall(r"^ +lines-\d ", said, re.MULTILINE))
