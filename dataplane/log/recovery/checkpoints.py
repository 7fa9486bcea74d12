"""Formats of small files of a log directory: checkpoints, start and stop markers, topic ids."""

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
    """Offsets of one log in the checkpoints of its directory."""

    recovery_point: int = 0
    log_start_offset: int = 0


NOTHING_NOTED: Final = LogOffsets()


def encode_offsets(offsets: Mapping[Partition, int]) -> bytes:
    """Return the content of an offset checkpoint, in Kafka's format."""
    lines = [_VERSION, str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return ("\n".join(lines) + "\n").encode("ascii")


def decode_offsets(data: Buffer) -> dict[Partition, int]:
    """Decode an offset checkpoint. Raises ValueError if it is malformed."""
    if len(data) > MAX_CHECKPOINT_BYTES:
        raise ValueError("larger than 64 MiB")
    lines = bytes(data).decode("ascii").splitlines()
    if len(lines) < 2 or lines[0] != _VERSION or int(lines[1]) != len(lines) - 2:
        raise ValueError("not a checkpoint of version 0, or truncated")
    offsets: dict[Partition, int] = {}
    for line in lines[2:]:
        topic, partition, offset = line.split(" ")
        offsets[topic, int(partition)] = int(offset)
    return offsets


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """Return the content of a clean-shutdown marker, in Kafka's format."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()


def decode_clean_shutdown(data: Buffer) -> int:
    """Return the broker epoch of a clean-shutdown marker; -1 if it has none."""
    try:
        content = json.loads(bytes(data))
        return int(content["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return -1


def encode_start(broker_epoch: int, boot_id: str) -> bytes:
    """Return the content of a start marker."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch, "bootId": boot_id}).encode()


def decode_start(data: Buffer) -> tuple[int, str]:
    """Return broker epoch and boot id of a start marker; (-1, "") if it is malformed."""
    try:
        content = json.loads(bytes(data))
        return int(content["brokerEpoch"]), str(content["bootId"])
    except (ValueError, KeyError, TypeError):
        return -1, ""


def encode_damage(lost_bytes: int, lost_end_offset: int) -> bytes:
    """Return the content of a marker of damage; see `decode_damage`."""
    return json.dumps(
        {"version": 0, "lostBytes": lost_bytes, "lostEndOffset": lost_end_offset}
    ).encode()


def decode_damage(data: Buffer) -> tuple[int, int]:
    """Return number of bytes and end offset of lost records; (1, -1) if the file is malformed.

    An end offset of -1 means unknown.
    """
    try:
        content = json.loads(bytes(data))
        return int(content["lostBytes"]), int(content["lostEndOffset"])
    except (ValueError, KeyError, TypeError):
        return 1, -1


def encode_partition_metadata(topic_id: bytes) -> bytes:
    """Return the content of a partition.metadata file, in Kafka's format."""
    assert len(topic_id) == _UUID_BYTES
    text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
    return f"version: 0\ntopic_id: {text}\n".encode()


def decode_partition_metadata(data: Buffer) -> bytes:
    """Return the topic id of a partition.metadata file. Raises ValueError if it is malformed."""
    lines = bytes(data).decode("ascii").splitlines()
    if len(lines) < 2 or lines[0] != "version: 0" or not lines[1].startswith("topic_id: "):
        raise ValueError("not a partition.metadata of version 0, or truncated")
    try:
        topic_id = base64.urlsafe_b64decode(lines[1].removeprefix("topic_id: ") + "==")
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if len(topic_id) != _UUID_BYTES:
        raise ValueError(f"the topic id has {len(topic_id)} bytes, not {_UUID_BYTES}")
    return topic_id
