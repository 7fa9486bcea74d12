"""The topics of a consumer's subscription: the beginning of its metadata for a protocol.

The coordinator does not interpret the metadata of members, with one exception: offsets of topics
that a group consumes do not expire (KIP-211). Other protocol types are never decoded.
"""

from collections.abc import Iterable
from struct import Struct, error
from typing import Final

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
# Topics of all different subscriptions of a group: one with more counts as one of all topics.
MAX_TOPICS: Final = 20_000
# Subscriptions with which another one is compared before it is decoded.
_COMPARED: Final = 8


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of all subscriptions of a group.

    None if one of them is not a consumer's, or they have too many topics: the group may subscribe
    to any topic. Most members have the same subscription, which is decoded once; also if they
    differ only after the topics.
    """
    topics: set[str] = set()
    decoded: list[bytes] = []  # the bytes of the last ones that differ, without versions
    left = MAX_TOPICS
    try:
        for metadata in dict.fromkeys(subscriptions):
            if _INT16.unpack_from(metadata)[0] < 0:
                return None
            if any(metadata.startswith(known, 2) for known in decoded):
                continue
            count = _INT32.unpack_from(metadata, 2)[0]
            left -= count
            if count < 0 or left < 0:
                return None
            end = _decode(metadata, count, topics)
            decoded = [metadata[2:end], *decoded[: _COMPARED - 1]]
    except (error, ValueError):
        return None
    return frozenset(topics)


def _decode(metadata: bytes, count: int, topics: set[str]) -> int:
    """Add the topics, and return the position after them. Raises ValueError or struct.error."""
    at = 6
    for _ in range(count):
        end = at + 2 + _INT16.unpack_from(metadata, at)[0]
        if not at + 2 <= end <= len(metadata):
            raise ValueError("the subscription ends within a topic")
        topics.add(metadata[at + 2 : end].decode())
        at = end
    return at
