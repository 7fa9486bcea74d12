"""Configs of topics and workers, from `metaquorum.config.registry`."""

from collections.abc import Iterable

from metaquorum.config.definition import ConfigKey, ConfigType
from metaquorum.config.registry import TOPIC_KEYS, WORKER_KEYS
from metaquorum.config.running_bounds import BOUNDS
from metaquorum.config.state_topics import IN_FORCE, MOST_DEFAULT_MIN_ISR
from tests.documents.reference.markdown import code, prose, table


def _default(key: ConfigKey) -> str:
    value = key.default
    if value is None:
        return "none"
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, tuple):
        return code(",".join(value)) if value else "empty"
    return code(value) if value != "" else "empty"


def _type(key: ConfigKey) -> str:
    values = f", {code(key.check)}" if key.check is not None else ""
    return ConfigType(key.type).name.lower() + values


def _dynamic(key: ConfigKey) -> str:
    bound = BOUNDS.get(key.name)
    return "no" if not key.dynamic else "yes" if bound is None else f"yes, {code(bound)}"


def _state_rows() -> Iterable[tuple[str, ...]]:
    for name, bounds in sorted(IN_FORCE.items()):
        yield code(name), str(bounds), prose(f"{bounds.why[0].upper()}{bounds.why[1:]}.")


def _topic_rows(keys: Iterable[ConfigKey]) -> Iterable[tuple[str, ...]]:
    for key in keys:
        workers = ", ".join(code(name) for name, _ in key.synonyms) or "-"
        yield code(key.name), _type(key), _default(key), workers, prose(key.doc)


def _worker_rows(keys: Iterable[ConfigKey]) -> Iterable[tuple[str, ...]]:
    for key in keys:
        scopes = ["listener"] * key.per_listener + ["mechanism"] * key.per_mechanism
        yield (
            code(key.name),
            _type(key),
            _default(key),
            _dynamic(key),
            " and ".join(scopes) or "-",
            prose(key.doc),
        )


def page() -> str:
    topics = sorted((k for k in TOPIC_KEYS.values() if not k.internal), key=lambda k: k.name)
    workers = sorted((k for k in WORKER_KEYS.values() if not k.internal), key=lambda k: k.name)
    topic_heads = (
        "Config",
        "Type and values",
        "Default",
        "Worker config for the default",
        "Meaning",
    )
    worker_heads = ("Config", "Type and values", "Default", "Dynamic", "Per", "Meaning")
    return f"""# Configs

Names, types and defaults are those of Apache Kafka 4.3 where Kafka has the config. A node refuses
an unknown name. Listed are configs that work, and some of Kafka's that ask for nothing: tools copy
them, and they accept the values at which Kafka behaves as metaquorum does. How values are set, and
which of several wins, is explained in [Change configs](../howto/change-configs.md).

## Configs of topics

A topic without a value of its own uses the worker config of the fourth column. All can be changed
while nodes run.

{table(topic_heads, _topic_rows(topics))}
### Internal topics

`__consumer_offsets` and `__transaction_state` hold the state of groups and transactions. A value
from any layer is bounded as follows, and a value of the topic's own beyond a bound is
refused. Kafka accepts all of them.

{table(("Config", "Value in force", "Reason"), _state_rows())}
From the default of all topics, `min.insync.replicas` is at most {MOST_DEFAULT_MIN_ISR} for them, so
that one failed worker stops no coordinator.

## Configs of workers (brokers)

*Dynamic* configs can be changed while nodes run, for one worker or for all; where a range follows,
a change must be within it, so that the cluster stays usable. The others take effect when a node
starts. *Per listener*: `listener.name.NAME.CONFIG` sets it for one listener; *per
mechanism*: `listener.name.NAME.MECHANISM.CONFIG` for one SASL mechanism of it.

{table(worker_heads, _worker_rows(workers))}"""
