"""Ids that the metadata hands out."""

from random import Random

from metaquorum.metadata.records import UUID_BYTES


def new_topic_id(random: Random) -> bytes:
    """A random (version 4) UUID; never one of those the protocol keeps for itself."""
    bits = random.getrandbits(8 * UUID_BYTES)
    bits = bits & ~(0xF << 76) | 4 << 76
    bits = bits & ~(0x3 << 62) | 2 << 62
    return bits.to_bytes(UUID_BYTES, "big")
