"""Resolution of configs: the value in force, and the layer that it comes from.

The layers are searched in Kafka's order:

1. the topic's own override
2. the dynamic config of this worker
3. the dynamic default of all workers
4. the static config that the node was started with
5. the default

In layers 2 to 5 a topic config has the name of its worker config (`segment.bytes` is
`log.segment.bytes`), and some durations have several units (`log.retention.ms`, `.minutes`,
`.hours`): the finest unit that is set applies.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import IntEnum
from typing import Final

from metaquorum.config.definition import ConfigKey, ConfigValue, Scope, parse, to_text
from metaquorum.config.registry import WORKER_KEYS, find_key, shown_keys
from metaquorum.config.state_topics import in_force
from metaquorum.wire.primitives.errors import KafkaError
from metaquorum.wire.primitives.frozen import frozen


class ConfigSource(IntEnum):
    """Layer that a value comes from, numbered as in DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_WORKER = 2
    DYNAMIC_DEFAULT_WORKER = 3
    STATIC_WORKER = 4
    DEFAULT = 5


@frozen
class Synonym:
    """Value of a config in one layer: its name there, its text, and the layer."""

    name: str
    text: str | None
    source: ConfigSource


@frozen
class Resolved:
    """Value of a config in force, and its synonyms in all layers, the one in force first.

    A config whose default is in no layer has no synonyms while it is not set.
    """

    key: ConfigKey
    value: ConfigValue
    synonyms: tuple[Synonym, ...]

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source if self.synonyms else ConfigSource.DEFAULT


_NO_TEXTS: Final[Mapping[str, str]] = {}


@frozen
class Configs:
    """Configs of one topic or worker: layers of text in the order of precedence.

    Immutable and cheap to make: each access parses the value again, so a hot path must keep it.
    The texts were checked when they were set. A text that this version cannot parse (another
    version wrote it) is skipped for the next layer, so `Configs` never raises for a known name.
    """

    scope: Scope
    layers: tuple[tuple[ConfigSource, Mapping[str, str]], ...]
    is_state: bool = False  # whether `state_topics` bounds the values (internal topics)

    def resolve(self, name: str) -> Resolved:
        """Return the config `name` with its synonyms. Raises KeyError if the name is unknown."""
        key = find_key(self.scope, name)
        if key is None:
            raise KeyError(name)
        words: list[Synonym] = []
        values: list[ConfigValue] = []
        for source, own_name, text, value in self._words(key):
            words.append(Synonym(own_name, text, source))
            values.append(value)
        # As in Kafka, whose workers have no defaults of these.
        if not key.dynamic_only and (key.synonyms or key.scope is Scope.WORKER):
            last = key.synonyms[-1][0] if key.synonyms else key.name
            default = WORKER_KEYS[last].default if key.synonyms else key.default
            words.append(Synonym(last, to_text(default), ConfigSource.DEFAULT))
        values.append(key.default)
        value = values[0]
        if self.is_state:
            is_own = bool(words) and words[0].source is ConfigSource.TOPIC
            value = in_force(name, value, is_own=is_own)
        return Resolved(key, value, tuple(words))

    def _words(self, key: ConfigKey) -> Iterator[tuple[ConfigSource, str, str, ConfigValue]]:
        """Yield (layer, name in that layer, text, value) of all layers except the default."""
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
        """Return `resolve(name).value` without the cost of collecting the synonyms."""
        key = find_key(self.scope, name)
        if key is None:
            raise KeyError(name)
        for source, _, _, value in self._words(key):
            if self.is_state:
                return in_force(name, value, is_own=source is ConfigSource.TOPIC)
            return value
        return in_force(name, key.default, is_own=False) if self.is_state else key.default

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
        """Return `internal.segment.bytes` if it is set (by tests), otherwise `segment.bytes`."""
        value = self["internal.segment.bytes"]
        return (
            self.integer("segment.bytes")
            if value is None
            else self.integer("internal.segment.bytes")
        )


@frozen
class ListenerConfigs:
    """Configs of one listener: its own value of each config, or else the worker's."""

    worker: Configs
    listener: str

    def find(self, name: str, mechanism: str = "", *, inherits: bool = True) -> ConfigValue:
        """Return the listener's own value of `name`, for `mechanism` if one is given.

        If the listener has none: the worker's value if `inherits`, otherwise the default.
        """
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
    return -1 if value < 0 else value * factor  # in Kafka any negative retention means no limit


@frozen
class WorkerLayers:
    """Config layers of one worker: all layers except a topic's overrides."""

    static: Mapping[str, str] = field(
        default_factory=dict
    )  # from the command line and the properties file
    dynamic: Mapping[str, str] = field(default_factory=dict)  # set for this worker
    dynamic_default: Mapping[str, str] = field(default_factory=dict)  # set for all workers

    def topic_configs(
        self, overrides: Mapping[str, str] = _NO_TEXTS, *, is_internal: bool = False
    ) -> Configs:
        """Return the configs of a topic with these overrides, as this worker applies them."""
        layers = ((ConfigSource.TOPIC, overrides), *self._layers())
        return Configs(Scope.TOPIC, layers, is_state=is_internal)

    def worker_configs(self) -> Configs:
        return Configs(Scope.WORKER, self._layers())

    def set_for_all_workers(self) -> Iterator[Resolved]:
        """Yield the configs of the dynamic default of all workers, without other layers."""
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
