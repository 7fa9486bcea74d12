"""Configs of topics and workers, from `metaquorum.config.registry`."""

from collections.abc import Iterable

from metaquorum.config.definition import ConfigKey, ConfigType
from metaquorum.config.registry import TOPIC_KEYS, WORKER_KEYS
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
            "yes" if key.dynamic else "no",
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

Names, types and defaults are those of Apache Kafka 4.3 where Kafka has the config. Only
configs that work are listed: a node refuses an unknown name. How values are set, and which of
several wins, is explained in [Change configs](../howto/change-configs.md).

## Configs of topics

A topic without a value of its own uses the worker config of the fourth column. All can be changed
while nodes run.

{table(topic_heads, _topic_rows(topics))}
## Configs of workers (brokers)

*Dynamic* configs can be changed while nodes run, for one worker or for all. The others take effect
when a node starts. *Per listener*: `listener.name.NAME.CONFIG` sets it for one listener; *per
mechanism*: `listener.name.NAME.MECHANISM.CONFIG` for one SASL mechanism of it.

{table(worker_heads, _worker_rows(workers))}"""
