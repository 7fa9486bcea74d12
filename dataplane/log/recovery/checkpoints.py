"""Small text files of a log directory: offsets by partition, marks of starts and stops, ids."""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from metaquorum.runtime.interfaces import Buffer

MAX_CHECKPOINT_BYTES: Final = 64 << 20
_VERSION: Final = "0"
_UUID_BYTES: Final = 16

Partition = tuple[str, int]


class LogOffsets(NamedTuple):
    """What the checkpoints of a directory say of one log."""

    recovery_point: int = 0
    log_start_offset: int = 0


NOTHING_NOTED: Final = LogOffsets()


def encode_offsets(offsets: Mapping[Partition, int]) -> bytes:
    lines = [_VERSION, str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return ("\n".join(lines) + "\n").encode("ascii")


def decode_offsets(data: Buffer) -> dict[Partition, int]:
    """ValueError when this is no offset checkpoint."""
    if len(data) > MAX_CHECKPOINT_BYTES:
        raise ValueError("too large")
    lines = bytes(data).decode("ascii").splitlines()
    if len(lines) < 2 or lines[0] != _VERSION or int(lines[1]) != len(lines) - 2:
        raise ValueError("not a checkpoint of version 0, or cut short")
    offsets: dict[Partition, int] = {}
    for line in lines[2:]:
        topic, partition, offset = line.split(" ")
        offsets[topic, int(partition)] = int(offset)
    return offsets


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()


def decode_clean_shutdown(data: Buffer) -> int:
    """The broker epoch in the mark; -1 when it says none."""
    try:
        content = json.loads(bytes(data))
        return int(content["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return -1


def encode_start(broker_epoch: int, boot_id: str) -> bytes:
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch, "bootId": boot_id}).encode()


def decode_start(data: Buffer) -> tuple[int, str]:
    """Broker epoch and boot id; (-1, "") when it says none."""
    try:
        content = json.loads(bytes(data))
        return int(content["brokerEpoch"]), str(content["bootId"])
    except (ValueError, KeyError, TypeError):
        return -1, ""


def encode_damage(lost_bytes: int, lost_end_offset: int) -> bytes:
    return json.dumps(
        {"version": 0, "lostBytes": lost_bytes, "lostEndOffset": lost_end_offset}
    ).encode()


def decode_damage(data: Buffer) -> tuple[int, int]:
    """Bytes and end offset of what was cut; (1, -1), some and not known, when it says none."""
    try:
        content = json.loads(bytes(data))
        return int(content["lostBytes"]), int(content["lostEndOffset"])
    except (ValueError, KeyError, TypeError):
        return 1, -1


def encode_partition_metadata(topic_id: bytes) -> bytes:
    assert len(topic_id) == _UUID_BYTES
    text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
    return f"version: 0\ntopic_id: {text}\n".encode()


def decode_partition_metadata(data: Buffer) -> bytes:
    """The topic id; ValueError when this is no partition.metadata."""
    lines = bytes(data).decode("ascii").splitlines()
    if len(lines) < 2 or lines[0] != "version: 0" or not lines[1].startswith("topic_id: "):
        raise ValueError("not a partition.metadata of version 0, or cut short")
    try:
        topic_id = base64.urlsafe_b64decode(lines[1].removeprefix("topic_id: ") + "==")
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if len(topic_id) != _UUID_BYTES:
        raise ValueError(f"a topic id of {len(topic_id)} bytes")
    return topic_id
