"""The checksum is CRC-32C, and importing it is cheap."""

import subprocess
import sys

import pytest

from metaquorum.wire.records.crc import crc32c


def test_the_check_value_is_that_of_crc_32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"456789"), crc32c(bytearray(b"123"))) == 0xE3069283


@pytest.mark.slow
def test_reading_batches_loads_no_codec_and_no_package_metadata() -> None:
    code = "import sys, metaquorum.wire.records.records; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    loaded = set(run.stdout.split())
    assert "metaquorum.wire.records.records" in loaded, run.stderr
    assert not loaded & {"crc32c", "importlib.metadata", "argparse", "lz4", "zstandard", "cramjam"}
