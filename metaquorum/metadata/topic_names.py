"""Validation of topic names, and detection of names that collide.

Source: Kafka's Topic.validate, and its metric names, which do not distinguish '.' and '_'.
"""

import re
from typing import Final

from metaquorum.metadata.image import MetadataImage, collision_name
from metaquorum.metadata.records import MAX_TOPIC_CHARS
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

# Name of the metadata log in DescribeQuorum. It is not a topic, and no topic may have this name.
METADATA_TOPIC: Final = "__cluster_metadata"
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_complaint(name: str) -> str | None:
    """Return why the name is invalid, with Kafka's message; None if it is valid."""
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
    """Raise KafkaError (INVALID_TOPIC_EXCEPTION) if the name is invalid."""
    if (complaint := topic_name_complaint(name)) is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {complaint}")


def colliding_topic(image: MetadataImage, name: str) -> str | None:
    """Return the existing topic whose name differs from `name` only in '.' and '_'; or None."""
    if "." not in name and "_" not in name:
        return None
    other = image.collisions.get(collision_name(name))
    return None if other == name else other
