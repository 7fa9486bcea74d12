"""Configs of Kafka that change nothing here, and the values at which Kafka does the same.

Tools copy all explicit configs of a topic (MirrorMaker 2), and files of infrastructure list all
configs of a broker. Such a value is accepted and shown; any other value is refused, because it asks
for something that this version does not have.
"""

from typing import Final

from metaquorum.config.definition import (
    BOOLEAN,
    INT,
    LIST,
    LONG,
    ConfigKey,
    Only,
    Range,
    Scope,
    topic_config,
    worker_config,
)

_TIERED: Final = "Tiered storage is not supported."
_HINT: Final = "Accepted for Kafka's tools; it has no effect here, because {why}."


def _topic_alone(name: str, doc: str) -> list[ConfigKey]:
    """Return a boolean topic config that no worker config defaults, and that can only be false."""
    return [ConfigKey(name, BOOLEAN, False, Only((False,)), Scope.TOPIC, True, doc)]


NEUTRAL_TOPIC_CONFIGS: Final[tuple[list[ConfigKey], ...]] = (
    topic_config(
        "preallocate",
        BOOLEAN,
        False,
        None,
        _HINT.format(why="files of segments grow as they are written"),
        worker="log.preallocate",
    ),
    _topic_alone("remote.storage.enable", f"{_TIERED} Only false is accepted."),
    _topic_alone("remote.log.copy.disable", f"{_TIERED} Only false is accepted."),
    _topic_alone("remote.log.delete.on.disable", f"{_TIERED} Only false is accepted."),
    topic_config(
        "local.retention.ms",
        LONG,
        -2,
        Only((-2,)),
        f"{_TIERED} Only -2, the value of retention.ms, is accepted.",
        worker="log.local.retention.ms",
    ),
    topic_config(
        "local.retention.bytes",
        LONG,
        -2,
        Only((-2,)),
        f"{_TIERED} Only -2, the value of retention.bytes, is accepted.",
        worker="log.local.retention.bytes",
    ),
)

NEUTRAL_WORKER_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    worker_config(
        "background.threads",
        INT,
        10,
        Range(1),
        _HINT.format(why="background tasks share the event loop and need no threads of their own"),
        dynamic=True,
    ),
    worker_config(
        "remote.log.storage.system.enable",
        BOOLEAN,
        False,
        Only((False,)),
        f"{_TIERED} Only false is accepted.",
    ),
    worker_config(
        "controlled.shutdown.enable",
        BOOLEAN,
        True,
        Only((True,)),
        "A worker that stops always hands over its partitions. Only true is accepted.",
    ),
    worker_config(
        "metric.reporters",
        LIST,
        (),
        Only(((),)),
        "Classes of Java are not loaded; metrics are those of /metrics. Only the empty list is"
        " accepted.",
    ),
)
