"""mq-server log dump, format, cluster-id and secret."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from metaquorum.cli.server.main import main
from metaquorum.dataplane.coordinators.group.record_formats import (
    OffsetKey,
    OffsetValue,
    encode_key,
    encode_offset_value,
)
from metaquorum.metadata.batch import Batch
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import FeatureLevelRecord, encode_record
from metaquorum.metadata.replay import Replay
from metaquorum.quorum.storage.bootstrap_records import read_first_records
from metaquorum.quorum.storage.framing import encode_frame
from metaquorum.quorum.storage.journal import MAGIC
from metaquorum.quorum.storage.journal_ops import (
    Begin,
    Entry,
    HardState,
    LogPosition,
    Truncate,
    encode_ops,
)
from metaquorum.quorum.storage.snapshot import write_snapshot
from metaquorum.runtime.system import RealDisk
from metaquorum.wire.records.records import Record as Stored
from metaquorum.wire.records.records import encode_batch
from tests.conformance.clients import Librdkafka, Record, create
from tests.conftest import NewNode
from tests.dataplane.log.logs import append, open_log
from tests.dataplane.log.test_transactions import end, send

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, [str(each) for each in arguments], prog_name="mq-server")
    assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


def rows(path: Path, *more: object, code: int = 0) -> list[Any]:
    return [json.loads(line) for line in run("log", "dump", path, "-o", "json", *more).splitlines()]


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_partition_s_transactions_are_shown(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = open_log(folder)
    send(log, 7, 0)
    end(log, 7, coordinator_epoch=3)
    send(log, 7, 1)
    log.roll(0)
    text = run("log", "dump", folder, "--keys")
    assert "marker abort, coordinator epoch 3" in text
    assert "aborted transaction of producer 7: offsets 0 to 1, last stable offset 2" in text
    (row,) = rows(folder / f"{0:020d}.txnindex")
    assert (row["aborted_producer_id"], row["first_offset"], row["last_offset"]) == (7, 0, 1)
    (row,) = rows(folder / f"{3:020d}.snapshot")
    assert (row["snapshot_producer_id"], row["transaction_first_offset"]) == (7, 2)
    assert "transaction from offset 2" in run("log", "dump", folder / f"{3:020d}.snapshot")
    with (folder / f"{0:020d}.txnindex").open("ab") as file:
        file.write(b"torn")
    assert rows(folder / f"{0:020d}.txnindex")[1]["torn_bytes"] == 4


def test_the_records_of_groups_are_shown(tmp_path: Path) -> None:
    folder = tmp_path / "__consumer_offsets-3"
    log = open_log(folder)
    value = encode_offset_value(OffsetValue(42, -1, "note", 1000))
    for each in (value, None):
        append(log, encode_batch([Stored(0, 0, encode_key(OffsetKey("g", "t", 1)), each)]))
    append(log, encode_batch([Stored(0, 0, b"\0\2\0", b"")]))
    text = run("log", "dump", folder, "--keys")
    assert "offset group=g topic=t partition=1 offset=42" in text
    assert "offset group=g topic=t partition=1 deleted=" in text
    assert "malformed=" in text
    log.close()


def test_a_running_node_s_files_are_shown_and_left_alone(start_node: NewNode) -> None:
    node = start_node()
    create(node.bootstrap, "orders")
    Librdkafka().send(node.bootstrap, "orders", [Record(b"key-1", b"v" * 1000)], "gzip")
    before = contents(node.data_dir / "orders-0")
    entries = [row for row in rows(node.data_dir) if row["op"] == "entry"]
    records = [each for row in entries for each in row.get("batch", {"records": []})["records"]]
    (topic,) = [each for each in records if each["type"] == "Topic"]
    assert topic["name"] == "orders"
    (partition,) = [each for each in records if each["type"] == "Partition"]
    assert partition["topic_id"] == topic["topic_id"]
    assert (partition["leader"], partition["isr"]) == (1, [1])
    assert [row["batch"]["dropped"] for row in entries if "batch" in row] == [None] * (
        len(entries) - 1
    )
    text = run("log", "dump", node.data_dir)
    assert re.search(r"^ +\d+  Topic name=orders topic_id=\S{22}$", text, re.MULTILINE)
    (batch,) = rows(node.data_dir / "orders-0", "--keys")
    assert (batch["base_offset"], batch["codec"], batch["records_count"]) == (0, "gzip", 1)
    assert [(r["offset"], r["key"], r["value_bytes"]) for r in batch["records"]] == [
        (0, "key-1", 1000)
    ]
    assert "key key-1  value 1000 bytes" in run("log", "dump", node.data_dir / "orders-0", "--keys")
    assert "key-1" not in run("log", "dump", node.data_dir / "orders-0")
    assert contents(node.data_dir / "orders-0") == before


def batch(term: int, sequence: int, offset: int, *levels: int) -> bytes:
    body = [encode_record(FeatureLevelRecord("metadata.version", level)) for level in levels]
    return Batch(term, 1, sequence, offset, len(body), b"".join(body)).encode()


def journal(folder: Path, *frames: list[Any]) -> tuple[Path, list[int]]:
    """Return a segment, and the position of each of its frames."""
    begin = Begin(1, CLUSTER_ID, 0, 0, HardState(0, -1))
    data, starts = b"", []
    for number, ops in enumerate([[begin], *frames]):
        starts.append(len(data))
        data += encode_frame(MAGIC, number, encode_ops(ops))
    path = folder / "00000000000000000000.journal"
    path.write_bytes(data)
    return path, starts


def test_batches_that_changed_nothing_are_marked(tmp_path: Path) -> None:
    path, _ = journal(
        tmp_path,
        [HardState(1, 1), Entry(1, 1, b""), Entry(2, 1, batch(1, 1, 0, 1))],
        [Entry(3, 1, batch(1, 2, 1, 2)), Entry(4, 1, batch(1, 2, 1, 2))],
        [Truncate(3, 1), HardState(2, 2)],
        [Entry(3, 2, batch(1, 3, 1, 1)), Entry(4, 2, batch(2, 1, 1, 1))],
    )
    dropped = [row["batch"]["dropped"] for row in rows(path) if "batch" in row]
    assert dropped == [
        None,
        None,
        "the log ended at offset 2",
        "it was proposed in term 1",
        None,
    ]
    text = run("log", "dump", path)
    assert "entry 1 of term 1: start of the term" in text
    assert "entries from 3 on are truncated" in text
    assert "DROPPED: the log ended at offset 2" in text


def test_damage_is_said_with_its_place_and_nothing_is_shown_behind_it(tmp_path: Path) -> None:
    path, starts = journal(
        tmp_path, [Entry(1, 1, b"")], [Entry(2, 1, batch(1, 1, 0, 1))], [Entry(3, 1, b"")]
    )
    data = bytearray(path.read_bytes())
    data[starts[2] + 30] ^= 1
    path.write_bytes(data)
    text = run("log", "dump", path, code=1)
    assert f"{starts[2]:>10}  DAMAGED: unreadable frame" in text
    assert "entry 1" in text
    assert "entry 3" not in text


def test_a_torn_end_is_no_damage(tmp_path: Path) -> None:
    path, starts = journal(tmp_path, [Entry(1, 1, b"")], [Entry(2, 1, b"")])
    path.write_bytes(path.read_bytes()[:-3])
    text = run("log", "dump", path)
    assert re.search(rf"^ *{starts[2]}  torn: \d+ incomplete bytes", text, re.MULTILINE)
    assert "synced" not in text, "the dump cannot know it"


def test_a_snapshot_shows_every_record_and_its_damage(tmp_path: Path) -> None:
    replay = Replay(MetadataImage.empty(CLUSTER_ID))
    replay.apply([FeatureLevelRecord(f"feature-{number}", 1) for number in range(1500)])
    image, _ = replay.finish()
    name = write_snapshot(RealDisk(), str(tmp_path), image, LogPosition(7, 2))
    path = Path(name.path)
    shown = rows(path)
    assert (shown[0]["op"], shown[0]["end_offset"], shown[0]["index"]) == ("snapshot", 1500, 7)
    assert len([row for row in shown if row["op"] == "record"]) == 1500
    assert (shown[-1]["op"], shown[-1]["records"]) == ("end", 1500)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "DAMAGED: unreadable frame" in run("log", "dump", path, code=1)
    path.write_bytes(data[: len(data) // 2])
    assert "DAMAGED: unreadable frame" in run("log", "dump", path, code=1)


def test_what_is_no_log_gets_a_sentence(tmp_path: Path) -> None:
    assert "contains neither a metadata log nor a partition" in run("log", "dump", tmp_path, code=2)
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    assert "is neither a metadata journal or snapshot" in run("log", "dump", other, code=2)
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(b"\xff" * 200)
    assert "DAMAGED: no batch begins at this position" in run("log", "dump", segment, code=1)


# Preparation of nodes before their start


def test_a_directory_is_formatted_once(tmp_path: Path) -> None:
    cluster_id = run("cluster-id").strip()
    data = tmp_path / "data"
    options = ["format", "--data-dir", data, "--cluster-id", cluster_id]
    assert run(*options, "--node-id", 3) == f"{data} formatted: cluster {cluster_id}, node 3\n"
    properties = (data / "meta.properties").read_text()
    assert f"cluster.id={cluster_id}\n" in properties
    assert "--ignore-formatted" in run(*options, "--node-id", 3, code=2)
    again = run(*options, "--node-id", 3, "--ignore-formatted")
    assert again == f"{data} was formatted already: cluster {cluster_id}, node 3\n"
    other = run(*options, "--node-id", 4, "--ignore-formatted", code=1)
    assert "belongs to node 3, not to node 4" in other
    assert (data / "meta.properties").read_text() == properties


def test_what_a_cluster_begins_with_is_written_where_another_run_was_killed_before(
    tmp_path: Path,
) -> None:
    password = tmp_path / "password"
    password.write_text("secret")
    password.chmod(0o600)
    data = tmp_path / "data"
    options = ["format", "--data-dir", data, "--cluster-id", run("cluster-id").strip()]
    options += ["--node-id", 3, "--ignore-formatted"]
    run(*options)  # with the records written before the kill
    user = ["--add-scram", f"SCRAM-SHA-512=[name=admin,password-file={password}]"]
    run(*options, *user)
    (record,) = read_first_records(RealDisk(), str(data))
    run(*options, *user)
    assert read_first_records(RealDisk(), str(data)) == [record]
    (data / "first.records").unlink()
    (data / "metadata").mkdir()  # the metadata log exists
    run(*options, *user)
    assert not (data / "first.records").exists()


@pytest.mark.parametrize("cluster_id", ["short", "!" * 22])
def test_a_cluster_id_has_22_characters(tmp_path: Path, cluster_id: str) -> None:
    options = ["--data-dir", tmp_path / "data", "--cluster-id", cluster_id, "--node-id", 1]
    assert "22 letters" in run("format", *options, code=2)
    assert not (tmp_path / "data").exists()


def test_what_is_not_empty_is_not_formatted(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    options = ["--data-dir", tmp_path, "--cluster-id", CLUSTER_ID, "--node-id", 1]
    assert "contains precious" in run("format", *options, code=1)


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    assert "has a new secret" in run("secret", path)
    content = path.read_bytes()
    assert len(content) > 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "exists already" in run("secret", path, code=1)
    assert path.read_bytes() == content
