"""Which topic names are legal, and which of them cannot stand beside each other.

Source: Kafka's Topic.validate and its metrics, in which '.' and '_' are one.
"""

import re
from typing import Final

from metaquorum.metadata.image import MetadataImage, collision_name
from metaquorum.metadata.records import MAX_TOPIC_CHARS
from wire.primitives.errors import ErrorCode, KafkaError

# The metadata log, which DescribeQuorum calls so. It is no topic, and none may stand for it.
METADATA_TOPIC: Final = "__cluster_metadata"
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_complaint(name: str) -> str | None:
    """What is wrong with the name, in Kafka's words; None when nothing is."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return "'.' or '..' is not allowed"
    if len(name) > MAX_TOPIC_CHARS:
        return (
            f"the length of '{name[:MAX_TOPIC_CHARS]}...' is longer than the max allowed length"
            f" {MAX_TOPIC_CHARS}"
        )
    if _LEGAL.fullmatch(name) is None:
        return (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_'"
            " and '-'"
        )
    return None


def check_topic_name(name: str) -> None:
    """KafkaError (INVALID_TOPIC_EXCEPTION) for a name that no topic can have."""
    if (complaint := topic_name_complaint(name)) is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {complaint}")


def colliding_topic(image: MetadataImage, name: str) -> str | None:
    """The topic whose name differs from `name` only by '.' for '_', if there is one."""
    if "." not in name and "_" not in name:
        return None
    other = image.collisions.get(collision_name(name))
    return None if other == name else other
