"""Capture `golden_records.json`: records that a real Apache Kafka writes to `__consumer_offsets`.

    python -m tests.dataplane.coordinators.group.capture_records --bootstrap HOST:PORT --tool TOOL

TOOL runs a command-line tool of Kafka by its name (`TOOL consumer-groups --bootstrap-server ...`).
The node must be new: all records of the topic are written to the file, in the order of the log,
each with its key and value in hex; the value of a tombstone is null.
"""

import argparse
import json
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

GOLDEN = Path(__file__).resolve().parent / "golden_records.json"
TOPIC = "golden-topic"
DELETED = "golden-deleted"
OFFSETS = "__consumer_offsets"
WAIT_S = 60.0


def make_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(TOPIC, 2, 1), NewTopic(DELETED, 1, 1)]).values():
        made.result()
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition in (0, 1):
        for number in range(10):
            producer.produce(TOPIC, b"%d" % number, partition=partition)
    producer.flush()


def consumer(bootstrap: str, group: str, **more: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "golden-client",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        | {name.replace("_", "."): value for name, value in more.items()}
    )


def poll_until_assigned(members: list[Consumer]) -> None:
    end = time.monotonic() + WAIT_S
    while any(len(member.assignment()) != 2 // len(members) for member in members):
        if time.monotonic() > end:
            raise SystemExit("the members of the group received no partitions")
        for member in members:
            member.poll(0.1)


def commit(member: Consumer, offset: int, metadata: str = "", partition: int = 0) -> None:
    member.commit(
        offsets=[TopicPartition(TOPIC, partition, offset, metadata=metadata)], asynchronous=False
    )


def use_members(bootstrap: str) -> None:
    """Commit as two members, as a member with a static id, and with a name that is not ASCII."""
    first, second = (consumer(bootstrap, "golden-two") for _ in range(2))
    for member in (first, second):
        member.subscribe([TOPIC])
    poll_until_assigned([first, second])
    for member in (first, second):
        (assigned,) = member.assignment()
        commit(member, 3, "from a member", assigned.partition)
    for message in (first.consume(1, 10), first.consume(1, 10)):
        first.commit(message=message[0], asynchronous=False)  # with the leader epoch
    second.close()
    first.close()
    for group in ("golden-static", "golden-ünï-組"):
        static = consumer(bootstrap, group, group_instance_id="instance-1")
        static.subscribe([TOPIC])
        poll_until_assigned([static])
        commit(static, 5, "mëtadata 注")
        static.close()


def use_no_members(bootstrap: str) -> None:
    simple = consumer(bootstrap, "golden-simple")
    for offset, metadata in ((0, ""), (7, "x" * 126), (8, "x" * 127), (1 << 40, "x" * 4000)):
        commit(simple, offset, metadata)
    simple.commit(offsets=[TopicPartition(DELETED, 0, 1)], asynchronous=False)
    simple.close()


def commit_with_retention(bootstrap: str) -> None:
    """Send OffsetCommit v2, the last versions of which (2-4) have a retention time."""
    host, _, port = bootstrap.rpartition(":")

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    for retention_ms in (-1, 86_400_000):
        body = struct.pack(">hhi", 8, 2, 1) + text("golden-client")
        body += text("golden-expiring") + struct.pack(">i", -1) + text("")
        body += struct.pack(">qi", retention_ms, 1) + text(TOPIC)
        body += struct.pack(">iiq", 1, 1, 6) + text("old client")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            size = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0]
            answer = connection.recv(size, socket.MSG_WAITALL)
        if answer[-2:] != b"\0\0":
            raise SystemExit(f"OffsetCommit v2 was refused: {answer.hex()}")


def use_tools(bootstrap: str, tool: str) -> None:
    """Let the Java client commit and delete offsets, and join with the protocol of KIP-848."""

    def run(*arguments: str) -> None:
        subprocess.run([tool, *arguments], check=True, stdout=subprocess.DEVNULL)

    groups = ("consumer-groups", "--bootstrap-server", bootstrap)
    reset = ("--reset-offsets", "--to-offset", "4", "--execute", "--topic", TOPIC)
    run(*groups, "--group", "golden-java", *reset)
    consumed = ("console-consumer", "--bootstrap-server", bootstrap, "--topic", TOPIC)
    run(*consumed, "--from-beginning", "--max-messages", "2", "--group", "golden-console")
    modern = ("--command-property", "group.protocol=consumer", "--group", "golden-modern")
    run(*consumed, "--from-beginning", "--max-messages", "2", *modern)
    run(*groups, "--delete-offsets", "--group", "golden-java", "--topic", f"{TOPIC}:0")
    run(*groups, "--delete", "--group", "golden-console")
    run("topics", "--bootstrap-server", bootstrap, "--delete", "--topic", DELETED)


def records(bootstrap: str) -> list[dict[str, str | None]]:
    reader = consumer(bootstrap, "golden-reader")
    partitions = reader.list_topics(OFFSETS).topics[OFFSETS].partitions
    found = []
    for partition in sorted(partitions):
        at = TopicPartition(OFFSETS, partition, 0)
        _, end = reader.get_watermark_offsets(at)
        reader.assign([at])
        while end and reader.position([at])[0].offset < end:
            message = reader.poll(1.0)
            if message is None or message.error():
                continue
            key, value = message.key(), message.value()
            found.append({"key": key.hex(), "value": None if value is None else value.hex()})
    reader.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    parser.add_argument("--tool", required=True, metavar="TOOL")
    options = parser.parse_args()
    make_topics(options.bootstrap)
    use_members(options.bootstrap)
    use_no_members(options.bootstrap)
    commit_with_retention(options.bootstrap)
    use_tools(options.bootstrap, options.tool)
    time.sleep(2)  # Kafka removes the offsets of the deleted topic after it has answered
    GOLDEN.write_text(json.dumps(records(options.bootstrap), indent=1) + "\n")


if __name__ == "__main__":
    main()
