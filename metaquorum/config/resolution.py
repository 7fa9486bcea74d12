"""The value of a config that is in force, and where it comes from.

It is looked for in layers, the nearest first, as Kafka does: a topic's own override; the worker's
dynamic config; the dynamic default of all workers; what the node was started with; the default.
Layers above the first know a topic's config by its worker name (`segment.bytes` is
`log.segment.bytes` there), and durations by several units (`log.retention.ms`, `.minutes`,
`.hours`; the finest that is set wins).
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import IntEnum
from typing import Final

from metaquorum.config.definition import ConfigKey, ConfigValue, Scope, parse, to_text
from metaquorum.config.registry import WORKER_KEYS, find_key, shown_keys
from wire.primitives.errors import KafkaError
from wire.primitives.frozen import frozen


class ConfigSource(IntEnum):
    """Which layer gave a value, as DescribeConfigs numbers them."""

    TOPIC = 1
    DYNAMIC_WORKER = 2
    DYNAMIC_DEFAULT_WORKER = 3
    STATIC_WORKER = 4
    DEFAULT = 5


@frozen
class Synonym:
    """One layer's word on a config: the name it uses there, its text, and which layer."""

    name: str
    text: str | None
    source: ConfigSource


@frozen
class Resolved:
    """A config's value, and every layer's word on it, the one in force first."""

    key: ConfigKey
    value: ConfigValue
    synonyms: tuple[Synonym, ...]

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source


_NO_TEXTS: Final[Mapping[str, str]] = {}


@frozen
class Configs:
    """The configs of one topic or worker as they are in force: layers of text, nearest first.

    Immutable, cheap to make (values are parsed when asked for; hold on to those of a hot path).
    Texts are assumed checked; one that another version wrote and this one cannot read is passed
    over in favour of the next layer, so that `Configs` never raises for a known name.
    """

    scope: Scope
    layers: tuple[tuple[ConfigSource, Mapping[str, str]], ...]

    def resolve(self, name: str) -> Resolved:
        """KeyError for a name that the scope does not know."""
        key = find_key(self.scope, name)
        if key is None:
            raise KeyError(name)
        words: list[Synonym] = []
        values: list[ConfigValue] = []
        for source, own_name, text, value in self._words(key):
            words.append(Synonym(own_name, text, source))
            values.append(value)
        last = key.synonyms[-1][0] if key.synonyms else key.name
        default = WORKER_KEYS[last].default if key.synonyms else key.default
        words.append(Synonym(last, to_text(default), ConfigSource.DEFAULT))
        values.append(key.default)
        return Resolved(key, values[0], tuple(words))

    def _words(self, key: ConfigKey) -> Iterator[tuple[ConfigSource, str, str, ConfigValue]]:
        """What the layers say, but for the default."""
        for source, texts in self.layers:
            if source is ConfigSource.TOPIC or self.scope is Scope.WORKER:
                names: tuple[tuple[str, int], ...] = ((key.name, 1),)
            else:
                names = key.synonyms
            for name, factor in names:
                text = texts.get(name)
                if text is None:
                    continue
                value = _parse_or_none(key, name, text, factor)
                if value is not None:
                    yield source, name, text, value

    def __getitem__(self, name: str) -> ConfigValue:
        """As `resolve(name).value`, without a word on the layers behind it."""
        key = find_key(self.scope, name)
        if key is None:
            raise KeyError(name)
        for _, _, _, value in self._words(key):
            return value
        return key.default

    def boolean(self, name: str) -> bool:
        value = self[name]
        assert isinstance(value, bool), name
        return value

    def integer(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int), name
        return value

    def double(self, name: str) -> float:
        value = self[name]
        assert isinstance(value, float), name
        return value

    def text(self, name: str) -> str:
        value = self[name]
        assert isinstance(value, str), name
        return value

    def list(self, name: str) -> tuple[str, ...]:
        value = self[name]
        assert isinstance(value, tuple), name
        return value

    def segment_bytes(self) -> int:
        """`segment.bytes`, or what tests put in its place."""
        value = self["internal.segment.bytes"]
        return (
            self.integer("segment.bytes")
            if value is None
            else self.integer("internal.segment.bytes")
        )


@frozen
class ListenerConfigs:
    """A worker's configs as one of its listeners has them: its own, or else the worker's."""

    worker: Configs
    listener: str

    def find(self, name: str, mechanism: str = "", *, inherits: bool = True) -> ConfigValue:
        """Where it `inherits`, the worker's if it has none of its own; else the default."""
        prefix = f"listener.name.{self.listener.lower()}."
        own = [f"{prefix}{mechanism.lower()}.{name}"] if mechanism else []
        for each in (*own, prefix + name):
            found = self.worker.resolve(each)
            if found.source is not ConfigSource.DEFAULT:
                return found.value
        return self.worker[name] if inherits else WORKER_KEYS[name].default

    def integer(self, name: str) -> int:
        value = self.find(name)
        assert isinstance(value, int), name
        return value

    def text(self, name: str) -> str:
        value = self.find(name)
        assert isinstance(value, str), name
        return value

    def list(self, name: str) -> tuple[str, ...]:
        value = self.find(name)
        assert isinstance(value, tuple), name
        return value


def _parse_or_none(key: ConfigKey, name: str, text: str, factor: int) -> ConfigValue:
    own = key if factor == 1 else WORKER_KEYS[name]
    try:
        value = parse(own, text)
    except KafkaError:
        return None
    if factor == 1:
        return value
    assert isinstance(value, int)
    return -1 if value < 0 else value * factor  # any negative retention is "for ever" in Kafka


@frozen
class WorkerLayers:
    """What one worker knows below a topic's own configs."""

    static: Mapping[str, str] = field(default_factory=dict)  # from its command line and file
    dynamic: Mapping[str, str] = field(default_factory=dict)  # set for this worker
    dynamic_default: Mapping[str, str] = field(default_factory=dict)  # set for all workers

    def topic_configs(self, overrides: Mapping[str, str] = _NO_TEXTS) -> Configs:
        """A topic's configs, as this worker has to follow them."""
        return Configs(Scope.TOPIC, ((ConfigSource.TOPIC, overrides), *self._layers()))

    def worker_configs(self) -> Configs:
        return Configs(Scope.WORKER, self._layers())

    def set_for_all_workers(self) -> Iterator[Resolved]:
        """What was set for all workers at once, and only that layer's word on it."""
        source = ConfigSource.DYNAMIC_DEFAULT_WORKER
        for key in shown_keys(Scope.WORKER):
            text = self.dynamic_default.get(key.name)
            value = None if text is None else _parse_or_none(key, key.name, text, 1)
            if value is not None:
                yield Resolved(key, value, (Synonym(key.name, text, source),))

    def _layers(self) -> tuple[tuple[ConfigSource, Mapping[str, str]], ...]:
        return (
            (ConfigSource.DYNAMIC_WORKER, self.dynamic),
            (ConfigSource.DYNAMIC_DEFAULT_WORKER, self.dynamic_default),
            (ConfigSource.STATIC_WORKER, self.static),
        )
