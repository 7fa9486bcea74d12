"""The topics of a consumer's subscription: the beginning of its metadata for a protocol.

The coordinator does not interpret the metadata of members, with one exception: offsets of topics
that a group consumes do not expire (KIP-211). Other protocol types are never decoded.
"""

from struct import Struct, error
from typing import Final

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
# A subscription with more topics than this counts as one of all topics.
MAX_TOPICS: Final = 10_000


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics; None if the metadata is not a consumer's, or has too many topics."""
    try:
        version = _INT16.unpack_from(metadata)[0]
        count = _INT32.unpack_from(metadata, 2)[0]
        if version < 0 or not 0 <= count <= MAX_TOPICS:
            return None
        at, topics = 6, set()
        for _ in range(count):
            end = at + 2 + _INT16.unpack_from(metadata, at)[0]
            if not at + 2 <= end <= len(metadata):
                return None
            topics.add(metadata[at + 2 : end].decode())
            at = end
    except (error, ValueError):
        return None
    return frozenset(topics)
