"""Generated ids of the metadata."""

from random import Random

from metaquorum.metadata.records import UUID_BYTES


def new_topic_id(random: Random) -> bytes:
    """Return a random (version 4) UUID, which is never an id reserved by the protocol."""
    bits = random.getrandbits(8 * UUID_BYTES)
    bits = bits & ~(0xF << 76) | 4 << 76
    bits = bits & ~(0x3 << 62) | 2 << 62
    return bits.to_bytes(UUID_BYTES, "big")
