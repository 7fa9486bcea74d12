"""The configs that one partition log uses, with Kafka's defaults."""

from typing import Final

from metaquorum.wire.primitives.frozen import frozen

NEVER: Final = 2**63 - 1
# Positions in an offset index are 32 bits wide.
MAX_SEGMENT_BYTES: Final = 2**31 - 1


@frozen
class LogConfig:
    """Topic configs of one log, named as in Kafka.

    `log_append_time`: whether message.timestamp.type is LogAppendTime.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    flush_messages: int = NEVER
    flush_ms: int = NEVER
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    log_append_time: bool = False

    def __post_init__(self) -> None:
        assert 0 < self.segment_bytes <= MAX_SEGMENT_BYTES
        assert self.segment_index_bytes >= 12
        assert self.index_interval_bytes >= 0
        assert self.flush_messages > 0
