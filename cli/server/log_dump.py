"""mq-server log dump: print the contents of a node's files, as text or JSON."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import click

from metaquorum.cli.common.output import plain, printable
from metaquorum.cli.common.refused_output import discard_refused_output
from metaquorum.cli.common.times import iso_text
from metaquorum.dataplane.log.dump import aborted_rows, producer_rows, segment_rows
from metaquorum.dataplane.log.segments.names import ABORTED_INDEX, LOG, parse_file_name
from metaquorum.dataplane.log.segments.names import SNAPSHOT as PRODUCER_SNAPSHOT
from metaquorum.quorum.storage.data_dir import META_PROPERTIES, METADATA_DIR
from metaquorum.quorum.storage.dump import (
    MAGIC_BYTES,
    MAX_SEGMENT_BYTES,
    Offsets,
    is_journal,
    is_snapshot,
    journal_rows,
    snapshot_rows,
)
from metaquorum.quorum.storage.journal import SUFFIX as JOURNAL
from metaquorum.quorum.storage.snapshot import SUFFIX as SNAPSHOT
from metaquorum.runtime.one_line import json_escaped, one_line

Row: TypeAlias = dict[str, Any]

DAMAGED: Final = 1
BAD_USAGE: Final = 2


class _UnknownFileError(Exception):
    pass


@click.group("log", short_help="Inspect the files of a node.")
def log_group() -> None:
    """Inspect the files of a node."""


@log_group.command("dump")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option(
    "--keys", is_flag=True, help="For partitions: print each record with its key and size."
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def dump(paths: tuple[str, ...], keys: bool, output: str) -> None:
    """Print the contents of the metadata log or of partitions.

    PATH is a data directory or its folder `metadata`, a file of that folder (journal or snapshot),
    a partition's folder, or a file of it: a segment (.log), its aborted transactions (.txnindex), a
    producer snapshot (.snapshot). The command writes nothing, and the node may
    run: an incomplete write at the end of a file is printed as torn. Exit code 1: a file is
    damaged; its line shows the position.

    \b
    Examples:
      mq-server log dump mq-data
      mq-server log dump mq-data/metadata/00000000000000000000.journal -o json
      mq-server log dump mq-data/orders-0 --keys
    """
    offsets = Offsets()
    is_damaged = False
    try:
        for path in (file for given in paths for file in _files(given)):
            if output == "text":
                click.echo(printable(f"{path}: {os.path.getsize(path)} bytes"))
            for row in _rows(path, offsets, keys):
                is_damaged = is_damaged or _has_damage(row)
                lines = map(printable, _lines(row)) if output == "text" else [_json(path, row)]
                for line in lines:
                    click.echo(line)
    except BrokenPipeError:  # the reader of the pipe has closed it
        discard_refused_output()
    except (_UnknownFileError, OSError) as error:
        click.echo(f"mq-server: {one_line(str(error))}", err=True)
        sys.exit(BAD_USAGE)
    if is_damaged:
        sys.exit(DAMAGED)


def _files(path: str) -> Sequence[str]:
    """Return the files to dump, in order. Raises _UnknownFileError for an unknown folder."""
    if not os.path.isdir(path):
        return [path]
    names = sorted(os.listdir(path))
    if META_PROPERTIES in names and METADATA_DIR in names:
        return _files(os.path.join(path, METADATA_DIR))
    found = [name for name in names if name.endswith(SNAPSHOT) and "-" in name]
    found += [name for name in names if name.endswith(JOURNAL)]
    found = found or [
        name
        for name in names
        if (parsed := parse_file_name(name)) and parsed[1] in (LOG, ABORTED_INDEX)
    ]
    if not found:
        raise _UnknownFileError(
            f"{path} contains neither a metadata log nor a partition; specify a data directory, its"
            f" folder {METADATA_DIR}, or a partition's folder"
        )
    return [os.path.join(path, name) for name in found]


def _rows(path: str, offsets: Offsets, keys: bool) -> Iterator[Row]:
    with open(path, "rb") as file:
        head = file.read(MAGIC_BYTES)
        if is_journal(head):
            data = head + file.read(MAX_SEGMENT_BYTES)
            yield from journal_rows(data, offsets)
            return
    if is_snapshot(head):
        for row in snapshot_rows(path):
            if row.get("op") == "snapshot":
                offsets.by_index[row["index"]] = row["end_offset"]
            yield row
    elif path.endswith(LOG):
        from metaquorum.cli.server.internal_records import decoder_for  # most dumps do not need it

        yield from segment_rows(path, records=keys, decode=decoder_for(path) if keys else None)
    elif path.endswith(ABORTED_INDEX):
        yield from aborted_rows(path)
    elif (parsed := parse_file_name(os.path.basename(path))) and parsed[1] == PRODUCER_SNAPSHOT:
        yield from producer_rows(path)
    elif path.endswith((JOURNAL, SNAPSHOT)):
        yield {
            "position": 0,
            "damage": "the file does not begin with the header of a journal or snapshot",
        }
    else:
        raise _UnknownFileError(
            f"{path} is neither a metadata journal or snapshot nor a segment of a partition"
        )


def _has_damage(row: Row) -> bool:
    return "damage" in row


def _json(path: str, row: Row) -> str:
    text = json.dumps({"file": path, **row}, ensure_ascii=False, default=_key_text)
    return json_escaped(text)


def _key_text(value: object) -> str:
    assert isinstance(value, bytes)
    return value.decode("utf-8", "backslashreplace")


# Text output


def _lines(row: Row) -> Iterator[str]:
    at = f"{row['position']:>10}  "
    if "torn_bytes" in row:
        what = "a write in progress, or the end of the file was lost, for example in a crash"
        yield f"{at}torn: {row['torn_bytes']} incomplete bytes: {what}"
        return
    if "op" in row:
        yield at + _op_text(row)
    elif "base_offset" in row:
        yield at + _batch_text(row)
    elif "aborted_producer_id" in row:
        yield (
            f"{at}aborted transaction of producer {row['aborted_producer_id']}: offsets"
            f" {row['first_offset']} to {row['last_offset']}, last stable offset"
            f" {row['last_stable_offset']}"
        )
    elif "snapshot_producer_id" in row:
        yield at + _producer_text(row)
    if "batch" in row:
        batch = row["batch"]
        for number, record in enumerate(batch["records"], batch["base_offset"]):
            yield f"{'':>12}{number:>8}  {_record_text(record)}"
    for record in row.get("records", ()) if "base_offset" in row else ():
        yield f"{'':>12}{record['offset']:>8}  {_partition_record_text(record)}"
    if "damage" in row:
        yield f"{at}DAMAGED: {printable(row['damage'])}"


def _op_text(row: Row) -> str:
    match row["op"]:
        case "begin":
            return (
                f"segment of cluster {printable(row['cluster_id'])}, after entry {row['index']} of"
                f" term {row['term']}; term {row['current_term']}, vote {plain(row['vote'])}"
            )
        case "vote":
            return f"term {row['term']}, vote {plain(row['vote'])}"
        case "truncate":
            return f"entries from {row['end_index']} on are truncated"
        case "reset":
            return (
                f"all entries are dropped; a snapshot covers entry {row['index']}"
                f" of term {row['term']}"
            )
        case "closed":
            return "closed cleanly"
        case "snapshot":
            return (
                f"snapshot of cluster {printable(row['cluster_id'])} up to offset"
                f" {row['end_offset']}, entry {row['index']} of term {row['term']}"
            )
        case "record":
            return _record_text(row["record"])
        case "end":
            return f"end: {row['records']} records"
    return _entry_text(row)


def _entry_text(row: Row) -> str:
    text = f"entry {row['index']} of term {row['term']}: "
    batch = row.get("batch")
    if batch is None:
        return text + ("not readable" if "damage" in row else "start of the term")
    text += (
        f"offsets {batch['base_offset']} to {batch['end_offset'] - 1}"
        if batch["records"]
        else f"no records at offset {batch['base_offset']}"
    )
    text += f", proposal {batch['sequence']} of {batch['proposer']}"
    return text + (f"; DROPPED: {batch['dropped']}" if batch["dropped"] else "")


def _record_text(record: Row) -> str:
    words = [record["type"]]
    words += [f"{name}={_value(value)}" for name, value in record.items() if name != "type"]
    return " ".join(words)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, dict):
        return f"({' '.join(f'{name}={_value(item)}' for name, item in value.items())})"
    return plain(value)


def _batch_text(row: Row) -> str:
    flags = [name for name in ("transactional", "control") if row[name]]
    producer = (
        f"producer {row['producer_id']} epoch {row['producer_epoch']} from {row['base_sequence']}"
        if row["producer_id"] >= 0
        else "no producer id"
    )
    return ", ".join(
        [
            f"offsets {row['base_offset']} to {row['last_offset']}",
            f"{row['records_count']} records in {row['bytes']} bytes",
            f"epoch {row['leader_epoch']}",
            row["codec"],
            f"{row['timestamp_type']} time {iso_text(row['max_timestamp']) or '-'}",
            producer,
            *flags,
        ]
    )


def _producer_text(row: Row) -> str:
    first_offset = row["transaction_first_offset"]
    open_ = "no transaction" if first_offset is None else f"transaction from offset {first_offset}"
    return (
        f"producer {row['snapshot_producer_id']} epoch {row['producer_epoch']}: last sequence"
        f" {row['last_sequence']} at offset {row['last_offset']}, coordinator epoch"
        f" {row['coordinator_epoch']}, {open_}, last append"
        f" {iso_text(row['last_timestamp']) or '-'}"
    )


def _fields_text(fields: Row) -> str:
    words = [f"{name}={_value(value)}" for name, value in fields.items() if name != "type"]
    return " ".join([fields.get("type", ""), *words]).strip()


def _partition_record_text(record: Row) -> str:
    if "marker" in record:
        if record["marker"] is None:
            return "control record of another type"
        return f"marker {record['marker']}, coordinator epoch {record['coordinator_epoch']}"
    if "fields" in record:
        return f"{iso_text(record['timestamp'])}  {_fields_text(record['fields'])}"
    key = "-" if record["key"] is None else printable(_key_text(record["key"]))
    size = "null" if record["value_bytes"] is None else f"{record['value_bytes']} bytes"
    names = f"  headers {plain(record['headers'])}" if record["headers"] else ""
    return f"{iso_text(record['timestamp'])}  key {key}  value {size}{names}"
