"""Definition of a config: its type, check, default, and the conversion of its value from text.

Values are text where Kafka's are (requests, files, metadata records) and typed after `parse`.
The functions `topic_config`, `worker_config` and `listener_config` make the rows of the tables;
`registry` collects all rows.

Source: ConfigDef of Apache Kafka 4.3, including the texts of its errors.
"""

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final, TypeAlias

from metaquorum.config.addresses import counts_by_address
from metaquorum.config.throttled_replicas import FORM, list_complaint
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen

ConfigValue: TypeAlias = bool | int | float | str | tuple[str, ...] | None
Check: TypeAlias = "Range | Levels | OneOf | Only | CountsByAddress | ThrottledReplicaList | None"

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
DOUBLE_MAX: Final = 1.7976931348623157e308
MAX_VALUE_CHARS: Final = 32_767  # per config value; the limit of a STRING in the protocol


class ConfigType(IntEnum):
    """Type of a config's value, numbered as in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class Scope(IntEnum):
    """Kind of resource that a config belongs to, numbered as the protocol's ConfigResource.Type."""

    TOPIC = 2
    WORKER = 4


@frozen
class Range:
    """Numbers from `least` to `most`, both included."""

    least: int
    most: int | None = None

    def complaint(self, value: ConfigValue) -> str | None:
        assert isinstance(value, int | float)
        if value < self.least:
            return f"Value must be at least {self.least}"
        if self.most is not None and value > self.most:
            return f"Value must be no more than {self.most}"
        return None

    def __str__(self) -> str:
        return f"[{self.least},...{'' if self.most is None else f',{self.most}'}]"


@frozen
class Levels:
    """Numbers from `least` to `most`, and the number `also`, which means a codec's default."""

    least: int
    most: int
    also: int

    def complaint(self, value: ConfigValue) -> str | None:
        assert isinstance(value, int)
        if self.least <= value <= self.most or value == self.also:
            return None
        return f"Value must be between {self.least} and {self.most} or equal to {self.also}"

    def __str__(self) -> str:
        return f"[{self.least},...,{self.most}] or {self.also}"


@frozen
class OneOf:
    """One of `values` (for a list: every item).

    `refused` lists values that Kafka accepts and this version does not support.
    """

    values: tuple[str, ...]
    refused: tuple[str, ...] = ()

    def complaint(self, value: ConfigValue) -> str | None:
        items = value if isinstance(value, tuple) else (value,)
        for item in items:
            if item in self.refused:
                return f"{item} is not supported by this version"
            if item not in self.values:
                return f"String must be one of: {', '.join(self.values)}"
        return None

    def __str__(self) -> str:
        return f"[{', '.join(self.values)}]"


@frozen
class Only:
    """Values of a config of Kafka that ask for nothing that this version does not have."""

    values: tuple[ConfigValue, ...]

    def complaint(self, value: ConfigValue) -> str | None:
        if value in self.values:
            return None
        return f"Only {self._texts} is supported by this version"

    @property
    def _texts(self) -> str:
        return " or ".join(to_text(value) or "an empty list" for value in self.values)

    def __str__(self) -> str:
        return self._texts


class CountsByAddress:
    """Counts by IP address: ADDRESS:COUNT, separated by commas."""

    def complaint(self, value: ConfigValue) -> str | None:
        assert isinstance(value, str)
        try:
            counts_by_address(value)
        except ValueError as error:
            return str(error)
        return None

    def __str__(self) -> str:
        return "ADDRESS:COUNT,..."


@frozen
class ThrottledReplicaList:
    """The replicas of a topic that are throttled: PARTITION:WORKER pairs or `*` (KIP-73)."""

    name: str  # the name of the config, which the error repeats

    def complaint(self, value: ConfigValue) -> str | None:
        assert isinstance(value, tuple)
        return list_complaint(self.name, value)

    def __str__(self) -> str:
        return FORM


@frozen
class ConfigKey:
    """One config.

    `synonyms` (topic configs only): the worker configs that give the default of a topic's value,
    each with the factor that converts its unit. `dynamic`: the value can be changed while nodes
    run; otherwise only by a restart. `dynamic_only`: a node's own options cannot set it.
    """

    name: str
    type: ConfigType
    default: ConfigValue
    check: Check
    scope: Scope
    dynamic: bool
    doc: str
    synonyms: tuple[tuple[str, int], ...] = ()
    internal: bool = False  # can be set, but is not listed or documented
    per_listener: bool = False  # can be set as listener.name.<listener>.<name>
    per_mechanism: bool = False  # or listener.name.<listener>.<mechanism>.<name>
    dynamic_only: bool = False

    @property
    def is_secret(self) -> bool:
        return self.type is ConfigType.PASSWORD

    @property
    def default_text(self) -> str | None:
        return to_text(self.default)


BOOLEAN, STRING, INT, LONG, DOUBLE, LIST, PASSWORD = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
    ConfigType.PASSWORD,
)
WEEK_MS: Final = 604_800_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000


def topic_config(
    name: str,
    type_: ConfigType,
    default: ConfigValue,
    check: Check,
    doc: str,
    *,
    worker: str,
    coarser: tuple[tuple[str, int, int | None], ...] = (),
    internal: bool = False,
) -> list[ConfigKey]:
    """Return a topic config and the worker configs that give its default value.

    `coarser` lists worker configs in coarser units as (name, factor, default). If there are any,
    the worker config in the finest unit has no default, so that the default in a coarser
    unit applies.
    """
    synonyms = ((worker, 1), *((unit, factor) for unit, factor, _ in coarser))
    of_workers = f"{doc} Applies to topics that do not set {name}."
    rows = [
        ConfigKey(name, type_, default, check, Scope.TOPIC, True, doc, synonyms, internal),
        ConfigKey(
            worker,
            type_,
            None if coarser else default,
            check,
            Scope.WORKER,
            True,
            of_workers,
            internal=internal,
        ),
    ]
    for unit, _, unit_default in coarser:
        rows.append(ConfigKey(unit, INT, unit_default, check, Scope.WORKER, False, of_workers))
    return rows


def throttled_replicas_config(name: str, doc: str) -> list[ConfigKey]:
    """Return the topic config of a list of throttled replicas, which no worker config defaults."""
    return [ConfigKey(name, LIST, (), ThrottledReplicaList(name), Scope.TOPIC, True, doc)]


def worker_config(
    name: str,
    type_: ConfigType,
    default: ConfigValue,
    check: Check,
    doc: str,
    *,
    dynamic: bool = False,
    dynamic_only: bool = False,
) -> ConfigKey:
    return ConfigKey(
        name,
        type_,
        default,
        check,
        Scope.WORKER,
        dynamic or dynamic_only,
        doc,
        dynamic_only=dynamic_only,
    )


def listener_config(
    name: str,
    type_: ConfigType,
    default: ConfigValue,
    check: Check,
    doc: str,
    *,
    dynamic: bool = False,
    per_mechanism: bool = False,
) -> ConfigKey:
    """Return a worker config that can also be set for one listener."""
    return ConfigKey(
        name,
        type_,
        default,
        check,
        Scope.WORKER,
        dynamic,
        doc,
        per_listener=True,
        per_mechanism=per_mechanism,
    )


# Numbers as Java's parsers accept them: narrower than Python's (no underscores, ASCII only).
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_DOUBLE: Final = re.compile(r"([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)[dDfF]?")
_LIMITS: Final = {
    ConfigType.SHORT: 2**15,
    ConfigType.INT: 2**31,
    ConfigType.LONG: 2**63,
}


def _boolean(_: ConfigType, text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError("Expected value to be either true or false")
    return lowered == "true"


def _integer(type_: ConfigType, text: str) -> int:
    limit = _LIMITS[type_]
    if _INTEGER.fullmatch(text) is None or not -limit <= int(text) < limit:
        raise ValueError(f"Not a number of type {type_.name}")
    return int(text)


def _double(_: ConfigType, text: str) -> float:
    match = _DOUBLE.fullmatch(text)
    if match is None:
        raise ValueError("Not a number of type DOUBLE")
    return float(match[1])


def _list(_: ConfigType, text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text else ()


def _string(_: ConfigType, text: str) -> str:
    return text


_PARSERS: Final[Mapping[ConfigType, Callable[[ConfigType, str], ConfigValue]]] = {
    ConfigType.BOOLEAN: _boolean,
    ConfigType.STRING: _string,
    ConfigType.SHORT: _integer,
    ConfigType.INT: _integer,
    ConfigType.LONG: _integer,
    ConfigType.DOUBLE: _double,
    ConfigType.LIST: _list,
    ConfigType.PASSWORD: _string,
}


def parse(key: ConfigKey, text: str) -> ConfigValue:
    """Return the value of `text`.

    Raises KafkaError (INVALID_CONFIG, with Kafka's own message) if `text` has the wrong type or
    fails the check of `key`.
    """
    text = text.strip()
    shown = text if len(text) <= 100 else text[:100] + "..."
    if key.is_secret:
        shown = "[hidden]"
    try:
        if len(text) > MAX_VALUE_CHARS:
            raise ValueError(f"Longer than {MAX_VALUE_CHARS} characters")
        value = _PARSERS[key.type](key.type, text)
        complaint = None if key.check is None else key.check.complaint(value)
        if complaint is not None:
            raise ValueError(complaint)
    except ValueError as error:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {shown} for configuration {key.name}: {error}",
        ) from None
    return value


def to_text(value: ConfigValue) -> str | None:
    """Return the text that `parse` converts to `value`; None for a config without a value."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return str(value).replace("e+", "E").replace("e", "E")
    return str(value)
