"""mq-admin produce."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO, Final

import click

from metaquorum.cli.admin.common.session import (
    INT32_MAX,
    Session,
    client_id_option,
    parse_assignments,
    session_command,
    topic_argument,
)
from metaquorum.cli.admin.records.text import TextError, from_json, unescape
from metaquorum.cli.common.output import Column
from metaquorum.client.producer import (
    ALL_REPLICAS,
    DEFAULT_BATCH_BYTES,
    Appended,
    Producer,
    ProducerRecord,
)
from metaquorum.client.socket_transport import BlockingProducer
from metaquorum.wire.records.records import Codec

READ_BYTES: Final = 1 << 20
MAX_RECORD_BYTES: Final = 64 * 1024 * 1024
_ACKS: Final = {"all": ALL_REPLICAS, "1": 1, "0": 0}
_COLUMNS: Final = (
    Column("topic"),
    Column("partition"),
    Column("records"),
    Column("first_offset"),
)


@click.command("produce", short_help="Send records from standard input.")
@topic_argument()
@click.option(
    "--input", "form", type=click.Choice(["lines", "json"]), default="lines", show_default=True
)
@click.option("--separator", default=r"\n", help="Separator of records.", show_default=True)
@click.option("-K", "--key-separator", metavar="TEXT", help="Separator of key and value.")
@click.option("-k", "--key", metavar="TEXT", help="Key of all records.")
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Header of all records; repeatable.",
)
@click.option(
    "-p", "--partition", type=click.IntRange(0, INT32_MAX), help="[default: by key, otherwise any]"
)
@click.option(
    "-Z", "--null", "null", metavar="TEXT", help="Send values equal to this text as null."
)
@click.option("--codec", type=click.Choice([codec.name.lower() for codec in Codec]), default="none")
@click.option("--acks", type=click.Choice(list(_ACKS)), default="all", show_default=True)
@click.option(
    "--no-idempotence", is_flag=True, help="Send without producer id and sequence numbers."
)
@click.option(
    "--batch-bytes",
    type=click.IntRange(1, MAX_RECORD_BYTES),
    default=DEFAULT_BATCH_BYTES,
    show_default=True,
)
@client_id_option
@session_command
def command(
    session: Session,
    topic: str,
    separator: str,
    batch_bytes: int,
    client_id: str,
    **options: Any,
) -> None:
    """Send records from standard input to a topic, one per line.

    Records are sent while the input is read; the summary counts acknowledged records. JSON input is
    the output of `consume -o json`: one object per line with key, value, headers, timestamp
    (milliseconds), and key_base64 or value_base64 for bytes that are not UTF-8. Its partition is
    ignored.

    \b
    Examples:
      echo hello | mq-admin produce greetings
      mq-admin produce prices --key-separator : < prices.txt
      mq-admin produce orders --input json --codec zstd < orders.jsonl
      mq-admin consume orders -o json | mq-admin produce orders-copy --input json
    """
    acks = _ACKS[options["acks"]]
    session.client_id = client_id
    asynchronous = Producer(
        session.cluster,
        codec=Codec[options["codec"].upper()],
        acks=acks,
        idempotent=acks == ALL_REPLICAS and not options["no_idempotence"],
        batch_bytes=batch_bytes,
    )
    producer = BlockingProducer(asynchronous)
    read = _reader(**options)
    totals: dict[int, Appended] = {}
    asynchronous.acknowledged = lambda appended: _count(totals, appended)
    number = 0
    try:
        for texts in chunks(sys.stdin.buffer, unescape(separator).encode()):
            records = []
            for text in texts:
                number += 1
                try:
                    records.append(read(text))
                except TextError as error:
                    raise click.UsageError(f"record {number}: {error}") from None
            producer.send(topic, records)
    except BaseException:
        _report_partial(session, topic, totals, number)
        raise
    _summary(session, topic, totals)


def _report_partial(
    session: Session, topic: str, totals: dict[int, Appended], read_count: int
) -> None:
    """Print which of the records that were read are acknowledged; the command has failed."""
    appended = sum(total.records for total in totals.values())
    if not read_count:
        return
    session.note(
        f"{appended} of the {read_count} records read were acknowledged; others may be in the log:"
        f" `mq-admin consume {topic} --from -{max(read_count - appended, 1)}` shows its end"
    )
    if totals:
        session.note("Acknowledged before the error:")
        _summary(session, topic, totals)


def _reader(
    *,
    form: str,
    key_separator: str | None,
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    null: str | None,
    **_: object,
) -> Callable[[bytes], ProducerRecord]:
    """Return a function from the text of a record to the record."""
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator exclude each other")
    if form == "json" and key_separator is not None:
        raise click.UsageError(
            "--key-separator is for input of lines; JSON input has a field for the key"
        )
    more = tuple((n, v.encode()) for n, v in parse_assignments(headers, "--header").items())
    divider = None if key_separator is None else unescape(key_separator).encode()
    if divider == b"":
        raise click.UsageError("--key-separator is empty")
    null_text = None if null is None else null.encode()

    def read(text: bytes) -> ProducerRecord:
        record = from_json(text) if form == "json" else _from_line(text, divider)
        return replace(
            record,
            key=record.key if key is None else key.encode(),
            value=None if null_text is not None and record.value == null_text else record.value,
            headers=(*record.headers, *more),
            partition=partition,
        )

    return read


def _from_line(text: bytes, divider: bytes | None) -> ProducerRecord:
    if divider is None:
        return ProducerRecord(text)
    key, found, value = text.partition(divider)
    if not found:
        raise TextError(f"the key separator {divider.decode()!r} is missing")
    return ProducerRecord(value, key)


def chunks(stream: BinaryIO, separator: bytes) -> Iterator[list[bytes]]:
    """Yield the texts between separators, in lists of those that are available."""
    if not separator:
        raise click.UsageError("--separator is empty")
    rest = bytearray()
    searched = 0
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    while data := read(READ_BYTES):
        rest += data
        if rest.find(separator, searched) < 0:
            searched = max(0, len(rest) - len(separator) + 1)
            if len(rest) > MAX_RECORD_BYTES:
                raise click.UsageError(f"a record exceeds {MAX_RECORD_BYTES} bytes")
            continue
        *texts, last = bytes(rest).split(separator)
        rest[:] = last
        searched = 0
        yield texts
    if rest:
        yield [bytes(rest)]


def _count(totals: dict[int, Appended], appended: Appended) -> None:
    before = totals.get(appended.partition)
    if before is not None:
        appended = replace(before, records=before.records + appended.records)
    totals[appended.partition] = appended


def _summary(session: Session, topic: str, totals: dict[int, Appended]) -> None:
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "records": total.records,
            "first_offset": total.base_offset if total.base_offset >= 0 else None,
        }
        for partition, total in sorted(totals.items())
    ]
    session.show_rows(rows, _COLUMNS)
    session.note_delays("Produce")
