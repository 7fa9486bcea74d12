"""Bounds of worker configs that change while nodes run.

A change is one call that all workers obey. These bounds are narrower than those of the node's own
options, where Kafka accepts a value with which the cluster cannot be used, or not be corrected by
another call. A value that is in force already, from before such a bound, stays.
"""

from collections.abc import Mapping
from typing import Final

from metaquorum.config.definition import HOUR_MS, WEEK_MS, ConfigValue
from metaquorum.config.registry import base_name
from metaquorum.wire.primitives.frozen import frozen

PER_IP: Final = "max.connections.per.ip"
OVERRIDES: Final = "max.connections.per.ip.overrides"
# Limits of connections, which `mq-server run --ignore-dynamic-connection-limits` ignores.
CONNECTION_LIMITS: Final = frozenset(
    ("max.connections", PER_IP, OVERRIDES, "max.connection.creation.rate")
)


@frozen
class Bound:
    least: float | None
    most: float | None
    why: str

    def complaint(self, value: ConfigValue) -> str | None:
        assert isinstance(value, int | float)
        if self.least is not None and value < self.least:
            return f"Value must be at least {self.least} while nodes run, {self.why}"
        if self.most is not None and value > self.most:
            return f"Value must be no more than {self.most} while nodes run, {self.why}"
        return None

    def __str__(self) -> str:
        least = "" if self.least is None else f"{self.least}"
        return f"[{least},...{'' if self.most is None else f',{self.most}'}]"


BOUNDS: Final[Mapping[str, Bound]] = {
    "max.connections": Bound(5, None, "so that operators can connect"),
    "log.cleaner.threads": Bound(1, 64, "or no log is compacted, or cleaning takes all of the CPU"),
    "log.cleaner.io.max.bytes.per.second": Bound(1024, None, "or no log is compacted"),
    "log.cleaner.io.buffer.size": Bound(None, 1 << 28, "or the cleaner takes all of the memory"),
    "log.cleaner.backoff.ms": Bound(None, 24 * HOUR_MS, "or no log is compacted"),
    "log.cleaner.max.compaction.lag.ms": Bound(
        1000, None, "or each batch has a segment of its own"
    ),
    "log.index.size.max.bytes": Bound(4096, None, "or each batch has a segment of its own"),
    "log.roll.ms": Bound(1000, None, "or each batch has a segment of its own"),
    "log.segment.delete.delay.ms": Bound(None, WEEK_MS, "or the files of removed segments stay"),
    "internal.log.segment.bytes": Bound(1 << 20, None, "or each batch has a segment of its own"),
    "message.max.bytes": Bound(1024, None, "or no producer can send a batch"),
    "num.recovery.threads.per.data.dir": Bound(None, 1000, "or recovery takes all of the memory"),
    "producer.id.expiration.ms": Bound(
        120_000,
        None,
        "the default delivery.timeout.ms of producers, or a batch that is sent again is appended"
        " twice",
    ),
}


def bound_of(name: str) -> Bound | None:
    """Return the bound of a worker config, which may have a listener's prefix."""
    return BOUNDS.get(base_name(name))
