"""Registry of all configs: every config of topics and workers in one table.

A config has a *scope*: topic or worker. `resolution` finds the value in force. Listed are configs
that have an effect, and those of Kafka whose value asks for nothing (`neutral`): an unknown name is
rejected, not stored and ignored.

Source: names, types, defaults and ranges of Apache Kafka 4.3 (LogConfig, KafkaConfig).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from metaquorum.config.addresses import counts_by_address
from metaquorum.config.definition import ConfigKey, ConfigValue, Scope, parse
from metaquorum.config.group import GROUP_CONFIGS
from metaquorum.config.listener import SOCKET_SERVER_CONFIGS
from metaquorum.config.neutral import NEUTRAL_TOPIC_CONFIGS, NEUTRAL_WORKER_CONFIGS
from metaquorum.config.topic import TOPIC_CONFIGS
from metaquorum.config.transaction import TRANSACTION_CONFIGS
from metaquorum.config.worker import SERVER_CONFIGS
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

_ALL: Final = (
    *chain(*TOPIC_CONFIGS),
    *chain(*NEUTRAL_TOPIC_CONFIGS),
    *NEUTRAL_WORKER_CONFIGS,
    *SERVER_CONFIGS,
    *SOCKET_SERVER_CONFIGS,
    *GROUP_CONFIGS,
    *TRANSACTION_CONFIGS,
)

TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = {
    key.name: key for key in _ALL if key.scope is Scope.TOPIC
}
WORKER_KEYS: Final[Mapping[str, ConfigKey]] = {
    key.name: key for key in _ALL if key.scope is Scope.WORKER
}

# Configs of Kafka's brokers for which another name, or no config, is the answer.
INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("num.io.threads", "num.network.threads", "queued.max.requests"),
        "a worker has one event loop and no pools of threads: run more workers for more processors",
    ),
    "security.inter.broker.protocol": "inter.broker.listener.name chooses the listener between"
    " workers, and listener.security.protocol.map its protocol",
    "zookeeper.connect": "there is no ZooKeeper: --quorum lists the controllers",
    "controller.quorum.bootstrap.servers": "--quorum lists the controllers",
    "controller.listener.names": "--quorum-listen is the address of a controller",
    "authorizer.class.name": "there is no authorizer yet",
    "offsets.commit.required.acks": "commits always wait for all in-sync replicas",
    "log.message.format.version": "all nodes store message format v2",
    "inter.broker.protocol.version": "`mq-admin cluster upgrade` raises the level of the cluster",
}

COMPACTION_LAGS: Final = ("min.compaction.lag.ms", "max.compaction.lag.ms")


def keys(scope: Scope) -> Mapping[str, ConfigKey]:
    """Return the configs of a scope by name, including the `internal` ones."""
    return TOPIC_KEYS if scope is Scope.TOPIC else WORKER_KEYS


_OF_LISTENER: Final = re.compile(
    r"listener\.name\.([a-z0-9_\-]{1,64})\.(?:(plain|scram-sha-256|scram-sha-512)\.)?(.+)"
)


def find_key(scope: Scope, name: str) -> ConfigKey | None:
    """Return the config `name`, which may have a listener's prefix; None if it is unknown."""
    known = keys(scope)
    if name in known:
        return known[name]
    if scope is Scope.WORKER and (match := _OF_LISTENER.fullmatch(name)) is not None:
        key = known.get(match[3])
        if key is not None and (key.per_mechanism if match[2] else key.per_listener):
            return replace(key, name=name)
    return None


def base_name(name: str) -> str:
    """Return the name of a worker config without the prefix of a listener."""
    match = None if name in WORKER_KEYS else _OF_LISTENER.fullmatch(name)
    return name if match is None else match[3]


def is_of_listener(name: str) -> bool:
    """Return whether `name` is a worker config with a listener's prefix."""
    return name not in WORKER_KEYS and find_key(Scope.WORKER, name) is not None


def key_named(scope: Scope, name: str) -> ConfigKey:
    """Return the config `name`.

    Raises KafkaError (INVALID_CONFIG), which suggests the closest name, if it is unknown.
    """
    if (found := find_key(scope, name)) is not None:
        return found
    known = keys(scope)
    import difflib  # needed for errors only, and importing it takes milliseconds

    what = "topic" if scope is Scope.TOPIC else "worker"
    if scope is Scope.WORKER and (instead := INSTEAD.get(name)) is not None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown {what} config name: {name}; {instead}")
    names = sorted(each for each, key in known.items() if not key.internal)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown {what} config name: {name}{hint}")


def parse_all(scope: Scope, texts: Mapping[str, str]) -> dict[str, ConfigValue]:
    """Return the values of `texts` by name.

    Raises KafkaError (INVALID_CONFIG) for the first unknown name or invalid value.
    """
    values = {name: parse(key_named(scope, name), text) for name, text in texts.items()}
    if scope is Scope.TOPIC:
        check_topic_values(values)
    else:
        check_worker_values(values)
    return values


def check_topic_values(values: Mapping[str, ConfigValue]) -> None:
    """Raise KafkaError (INVALID_CONFIG) if a topic's own values contradict each other."""
    least, most = (values.get(name, TOPIC_KEYS[name].default) for name in COMPACTION_LAGS)
    assert isinstance(least, int)
    assert isinstance(most, int)
    if least > most:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({least}) > "
            f"max.compaction.lag.ms ({most})",
        )


def check_worker_values(values: Mapping[str, ConfigValue]) -> None:
    """Raise KafkaError (INVALID_CONFIG) if a worker's values contradict each other."""
    overrides = values.get("max.connections.per.ip.overrides") or ""
    assert isinstance(overrides, str)
    if values.get("max.connections.per.ip") == 0 and not any(counts_by_address(overrides).values()):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides"
            " property is set, with a count above zero",
        )


def shown_keys(scope: Scope) -> Iterable[ConfigKey]:
    """Return the configs for DescribeConfigs, help and reference pages, sorted by name."""
    return (key for _, key in sorted(keys(scope).items()) if not key.internal)
