"""Apache Kafka's DumpLogSegments reads the segments that this project writes."""

import re
from functools import partial
from pathlib import Path

import pytest
import trio

from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.wire.records.compression import Codec
from tests.conftest import KafkaTool
from tests.dataplane.log.compaction.compacted import (
    RETENTION_MS,
    append_records,
    clean,
    stored_batches,
    stored_records,
)
from tests.dataplane.log.logs import (
    append,
    close_clean,
    headers_of,
    log_files,
    make_batch,
    open_log,
)
from tests.dataplane.log.test_transactions import fill


def test_kafka_reads_log_indexes_and_snapshots(tmp_path: Path, kafka_tool: KafkaTool) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=20_000, index_interval_bytes=300))
    for sequence in range(0, 450, 3):
        append(
            log,
            make_batch(
                3, timestamp=1000 + 7 * sequence, producer_id=7, sequence=sequence, value=b"v" * 50
            ),
        )
    trio.run(close_clean, log)
    files = sorted(path for path in tmp_path.iterdir() if re.match(r"\d{20}\.", path.name))
    kinds = {path.suffix for path in files}
    assert kinds == {".log", ".index", ".timeindex", ".snapshot"}
    names = ",".join(map(str, files))

    dumped = kafka_tool("dump-log", "--deep-iteration", "--print-data-log", "--files", names)
    assert dumped.returncode == 0, dumped.stderr
    # Messages of dump-log for an index entry with a wrong position, or an incomplete batch.
    for complaint in ("Mismatches", "isvalid: false", "out of order", "Error"):
        assert complaint not in dumped.stdout + dumped.stderr
    # dump-log reports that each segment but the first does not follow offset -1; no other gap.
    assert set(re.findall(r"(\S+) is followed by", dumped.stdout + dumped.stderr)) == {"-1"}
    offsets = [int(one) for one in re.findall(r"^\| offset: (\d+)", dumped.stdout, re.MULTILINE)]
    assert sorted(offsets) == list(range(450))
    snapshot = re.findall(r"producerId: 7 producerEpoch: 0 .*?lastSequence: (\d+)", dumped.stdout)
    assert "449" in snapshot

    sane = kafka_tool("dump-log", "--index-sanity-check", "--files", names)
    indexes = [path for path in files if path.suffix in (".index", ".timeindex")]
    assert sane.stdout.count("passed sanity check") == len(indexes), sane.stdout + sane.stderr


def test_kafka_reads_markers_aborted_transactions_and_open_ones(
    tmp_path: Path, kafka_tool: KafkaTool
) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=300, index_interval_bytes=100))
    aborted = fill(log)
    log.roll(0)
    trio.run(close_clean, log)
    files = sorted(path for path in tmp_path.iterdir() if re.match(r"\d{20}\.", path.name))
    names = ",".join(map(str, files))
    dumped = kafka_tool("dump-log", "--deep-iteration", "--print-data-log", "--files", names)
    assert dumped.returncode == 0, dumped.stderr
    for complaint in ("Mismatches", "isvalid: false", "out of order", "Error"):
        assert complaint not in dumped.stdout + dumped.stderr
    kinds = re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: 0", dumped.stdout)
    assert (kinds.count("ABORT"), kinds.count("COMMIT")) == (len(aborted), 3)
    entries = re.findall(
        r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)",
        dumped.stdout,
    )
    assert sorted(tuple(map(int, each)) for each in entries) == sorted(aborted)
    last = dumped.stdout.split(f"{18:020d}.snapshot")[-1]
    open_ = r"producerId: 5 producerEpoch: 0 .*currentTxnFirstOffset: OptionalLong\[17\]"
    assert re.search(open_, last), last


@pytest.mark.parametrize("codec", list(Codec))
def test_kafka_reads_cleaned_segments(tmp_path: Path, kafka_tool: KafkaTool, codec: Codec) -> None:
    config = LogConfig(segment_bytes=3000, index_interval_bytes=300)
    log = open_log(tmp_path, config)
    for number in range(100):
        rows = [(b"k%d" % (number * i % 23), None if number % 5 == 0 else b"v") for i in range(4)]
        append_records(
            log, rows, now_ms=1000 + number, codec=codec, producer_id=7, sequence=4 * number
        )
    append_records(log, [(b"k%d" % i, b"last") for i in (*range(0, 23, 2), 7, 21)], codec=codec)
    log.roll(0)
    append_records(log, [(b"active", b"v")])
    for _ in range(2):
        trio.run(partial(clean, log, end=414, now_ms=5000))
    trio.run(close_clean, log)
    kept = [record.offset for record in stored_records(log)]
    horizons = {headers_of(batch)[0].delete_horizon_ms for batch in stored_batches(log)}
    assert horizons == {None, 5000 + RETENTION_MS}
    assert any(not headers_of(batch)[0].record_count for batch in stored_batches(log))
    files = sorted(path for path in tmp_path.iterdir() if re.match(r"\d{20}\.[a-z]+$", path.name))
    assert len(log_files(tmp_path)) < 4
    names = ",".join(map(str, files))
    dumped = kafka_tool("dump-log", "--deep-iteration", "--print-data-log", "--files", names)
    assert dumped.returncode == 0, dumped.stderr
    for complaint in ("Mismatches", "isvalid: false", "out of order", "Error"):
        assert complaint not in dumped.stdout + dumped.stderr
    offsets = [int(one) for one in re.findall(r"^\| offset: (\d+)", dumped.stdout, re.MULTILINE)]
    assert sorted(offsets) == kept
    assert f"deleteHorizonMs: OptionalLong[{5000 + RETENTION_MS}]" in dumped.stdout
    sane = kafka_tool("dump-log", "--index-sanity-check", "--files", names)
    indexes = [path for path in files if path.suffix.endswith("index") and path.stat().st_size]
    assert sane.stdout.count("passed sanity check") == len(indexes), sane.stdout + sane.stderr
