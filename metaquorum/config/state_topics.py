"""Configs of the internal topics, in which coordinators keep their state.

No value of a config may remove this state, or stop a coordinator from writing it. `in_force` bounds
the values that such a topic has from any layer, and its own value must be one that `in_force` does
not change: another is refused, not accepted and ignored. Kafka accepts all of them.

    cleanup.policy              compact: retention would remove offsets and transactions in use
    max.message.bytes           at least its default: a smaller one refuses the records of groups
    min.compaction.lag.ms, min.cleanable.dirty.ratio
                                the log is compacted at some time: it is read whole at each load
    segment.ms, segment.index.bytes, max.compaction.lag.ms
                                a segment holds more than a few records: each has open files
    file.delete.delay.ms        removed files are deleted at some time
    min.insync.replicas         from the default of all topics at most 2: with three replicas, one
                                failed worker stops nothing
    message.timestamp.type      CreateTime
"""

from collections.abc import Mapping
from typing import Final

from metaquorum.config.definition import HOUR_MS, MINUTE_MS, WEEK_MS, ConfigValue
from metaquorum.wire.primitives.frozen import frozen

MIN_ISR: Final = "min.insync.replicas"
MOST_DEFAULT_MIN_ISR: Final = 2


@frozen
class Bounds:
    """Bounds of a number; None: no bound."""

    least: float | None = None
    most: float | None = None
    why: str = ""

    def bounded(self, value: ConfigValue) -> ConfigValue:
        assert isinstance(value, int | float)
        if self.least is not None and value < self.least:
            return type(value)(self.least)
        if self.most is not None and value > self.most:
            return type(value)(self.most)
        return value

    def __str__(self) -> str:
        return f"at least {self.least}" if self.most is None else f"at most {self.most}"


@frozen
class Fixed:
    """The only value."""

    value: ConfigValue
    text: str
    why: str

    def bounded(self, _: ConfigValue) -> ConfigValue:
        return self.value

    def __str__(self) -> str:
        return self.text


_FEW_FILES: Final = "or each record would have a segment of its own"
_IS_COMPACTED: Final = "or it would not be compacted"
IN_FORCE: Final[Mapping[str, Bounds | Fixed]] = {
    "cleanup.policy": Fixed(
        ("compact",), "compact", "or retention would delete state that is in use"
    ),
    "message.timestamp.type": Fixed("CreateTime", "CreateTime", "as coordinators set it"),
    "max.message.bytes": Bounds(
        least=1_048_588, why="or the records of large groups and transactions would be refused"
    ),
    "min.compaction.lag.ms": Bounds(most=24 * HOUR_MS, why=_IS_COMPACTED),
    "min.cleanable.dirty.ratio": Bounds(most=0.9, why=_IS_COMPACTED),
    "max.compaction.lag.ms": Bounds(least=HOUR_MS, why=_FEW_FILES),
    "segment.ms": Bounds(least=MINUTE_MS, why=_FEW_FILES),
    "segment.index.bytes": Bounds(least=4096, why=_FEW_FILES),
    "file.delete.delay.ms": Bounds(most=WEEK_MS, why="or the files of removed segments would stay"),
}
# Only for changes: the simulator and tests create such topics with small segments.
_OWN: Final[Mapping[str, Bounds]] = {
    "internal.segment.bytes": Bounds(least=1 << 20, why="or the records of groups would not fit"),
}


def in_force(name: str, value: ConfigValue, *, is_own: bool) -> ConfigValue:
    """Return the value in force of the config `name` of an internal topic.

    `is_own`: `value` is the topic's own, not a default of all topics.
    """
    if name == MIN_ISR and not is_own:
        assert isinstance(value, int)
        return min(value, MOST_DEFAULT_MIN_ISR)
    bounds = IN_FORCE.get(name)
    return value if bounds is None or value is None else bounds.bounded(value)


def own_complaint(name: str, value: ConfigValue, fewest_replicas: int) -> str | None:
    """Return why an internal topic cannot have this value of its own; None if it can.

    `fewest_replicas`: of a partition of the topic.
    """
    if name == MIN_ISR:
        assert isinstance(value, int)
        most = max(MOST_DEFAULT_MIN_ISR, fewest_replicas - 1)
        return None if value <= most else f"at most {most}, or one failed worker would stop it"
    bounds = IN_FORCE.get(name) or _OWN.get(name)
    if bounds is None or value is None or bounds.bounded(value) == value:
        return None
    return f"{bounds}, {bounds.why}"
