"""Every config there is, in one table: what parses, checks, describes and documents them.

A config lives in a *scope*: of topics, or of workers; `config_layers` finds the value in force.
Only what works is listed: an unknown name is refused rather than kept and ignored.

Source: names, types, defaults and ranges of Apache Kafka 4.3 (LogConfig, KafkaConfig).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from metaquorum.config.definition import ConfigKey, ConfigValue, Scope, parse
from metaquorum.config.listener import SOCKET_SERVER_CONFIGS
from metaquorum.config.topic import TOPIC_CONFIGS
from metaquorum.config.worker import SERVER_CONFIGS
from wire.primitives.errors import ErrorCode, KafkaError

_ALL: Final = (*chain(*TOPIC_CONFIGS), *SERVER_CONFIGS, *SOCKET_SERVER_CONFIGS)

TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = {
    key.name: key for key in _ALL if key.scope is Scope.TOPIC
}
WORKER_KEYS: Final[Mapping[str, ConfigKey]] = {
    key.name: key for key in _ALL if key.scope is Scope.WORKER
}

COMPACTION_LAGS: Final = ("min.compaction.lag.ms", "max.compaction.lag.ms")


def keys(scope: Scope) -> Mapping[str, ConfigKey]:
    """The configs of a scope by name, those `internal` too."""
    return TOPIC_KEYS if scope is Scope.TOPIC else WORKER_KEYS


_OF_LISTENER: Final = re.compile(
    r"listener\.name\.([a-z0-9_\-]{1,64})\.(?:(plain|scram-sha-256|scram-sha-512)\.)?(.+)"
)


def find_key(scope: Scope, name: str) -> ConfigKey | None:
    """That config, also where a listener has one of its own."""
    known = keys(scope)
    if name in known:
        return known[name]
    if scope is Scope.WORKER and (match := _OF_LISTENER.fullmatch(name)) is not None:
        key = known.get(match[3])
        if key is not None and (key.per_mechanism if match[2] else key.per_listener):
            return replace(key, name=name)
    return None


def is_of_listener(name: str) -> bool:
    """Whether that is a config that one listener has of its own."""
    return name not in WORKER_KEYS and find_key(Scope.WORKER, name) is not None


def key_named(scope: Scope, name: str) -> ConfigKey:
    """That config; KafkaError (INVALID_CONFIG) with the closest name where there is none."""
    if (found := find_key(scope, name)) is not None:
        return found
    known = keys(scope)
    import difflib  # only for a mistake, and costs milliseconds

    what = "topic" if scope is Scope.TOPIC else "worker"
    names = sorted(each for each, key in known.items() if not key.internal)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown {what} config name: {name}{hint}")


def parse_all(scope: Scope, texts: Mapping[str, str]) -> dict[str, ConfigValue]:
    """Every value of `texts` by name; KafkaError (INVALID_CONFIG) for the first that is wrong."""
    values = {name: parse(key_named(scope, name), text) for name, text in texts.items()}
    if scope is Scope.TOPIC:
        check_topic_values(values)
    return values


def check_topic_values(values: Mapping[str, ConfigValue]) -> None:
    """KafkaError (INVALID_CONFIG) when a topic's own values contradict each other."""
    least, most = (values.get(name, TOPIC_KEYS[name].default) for name in COMPACTION_LAGS)
    assert isinstance(least, int)
    assert isinstance(most, int)
    if least > most:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({least}) > "
            f"max.compaction.lag.ms ({most})",
        )


def shown_keys(scope: Scope) -> Iterable[ConfigKey]:
    """Those for DescribeConfigs, help and reference pages, by name."""
    return (key for _, key in sorted(keys(scope).items()) if not key.internal)
