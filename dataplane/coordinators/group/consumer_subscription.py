"""The topics of a consumer's subscription: the beginning of its metadata for a protocol.

The coordinator does not interpret the metadata of members, with one exception: offsets of topics
that a group consumes do not expire (KIP-211). Other protocol types are never decoded.
"""

from collections.abc import Iterable
from struct import Struct, error
from typing import Final

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
# A subscription with more topics than this counts as one of all topics.
MAX_TOPICS: Final = 10_000


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics; None if the metadata is not a consumer's, or has too many topics."""
    return topics_of_any([metadata])


def topics_of_any(metadata_of_all: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of several subscriptions; None if they are unknown of one of them.

    Members of a group usually have the same topics, which are then decoded once: they differ in
    what follows, as in the partitions that each owns.
    """
    topics: set[str] = set()
    decoded = b""  # number and names of the topics that were decoded last
    for metadata in metadata_of_all:
        if decoded and metadata.startswith(decoded, 2) and metadata[0] < 0x80:
            continue
        end = _add_topics(metadata, topics)
        if end is None:
            return None
        decoded = metadata[2:end]
    return frozenset(topics)


def _add_topics(metadata: bytes, topics: set[str]) -> int | None:
    """Add the topics of a subscription; return where they end, None if it is malformed."""
    try:
        version = _INT16.unpack_from(metadata)[0]
        count = _INT32.unpack_from(metadata, 2)[0]
        if version < 0 or not 0 <= count <= MAX_TOPICS:
            return None
        at = 6
        for _ in range(count):
            end = at + 2 + _INT16.unpack_from(metadata, at)[0]
            if not at + 2 <= end <= len(metadata):
                return None
            topics.add(metadata[at + 2 : end].decode())
            at = end
    except (error, ValueError):
        return None
    return at
