"""Entities and values of quotas: in options, as text, and in files.

A file (JSON or YAML) uses the model of Kafka's admin client: a part of an entity that is null is
the default of its kind; a part that is missing is not part of the entity.

    - entity: {user: alice, client-id: null}
      quotas: {producer_byte_rate: 1048576}
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from metaquorum.cli.admin.common.session import Session
from metaquorum.cli.common.output import Row, plain, size_text
from metaquorum.config.addresses import canonical
from metaquorum.metadata.quota_lookup import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    OBSERVED_CONSUMER_BYTE_RATE,
    OBSERVED_PRODUCER_BYTE_RATE,
    OBSERVED_REQUEST_PERCENTAGE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    EntityPart,
    Name,
    QuotaEntity,
    SpecialName,
)
from metaquorum.wire.protocol.apis import ApiKey

ALL_OF_A_WORKER: Final = 100  # percent: one event loop
# Unit of each quota
UNITS: Final[Mapping[str, str]] = {
    PRODUCER_BYTE_RATE: "B/s",
    CONSUMER_BYTE_RATE: "B/s",
    REQUEST_PERCENTAGE: "%",
    CONTROLLER_MUTATION_RATE: "mutations/s",
    CONNECTION_CREATION_RATE: "connections/s",
    OBSERVED_PRODUCER_BYTE_RATE: "B/s",
    OBSERVED_CONSUMER_BYTE_RATE: "B/s",
    OBSERVED_REQUEST_PERCENTAGE: "%",
}
OBSERVED_KEYS: Final = (
    OBSERVED_PRODUCER_BYTE_RATE,
    OBSERVED_CONSUMER_BYTE_RATE,
    OBSERVED_REQUEST_PERCENTAGE,
)
CLIENT_KEYS: Final = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    CONTROLLER_MUTATION_RATE,
)
BYTE_RATES: Final = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    OBSERVED_PRODUCER_BYTE_RATE,
    OBSERVED_CONSUMER_BYTE_RATE,
)

MAX_FILE_BYTES: Final = 64 << 20

_AMOUNT: Final = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([kKMGT]i?)?(B(?:/s)?|%)?")
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_FACTORS: Final = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


# Options


def entity_options(*, ip: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options for the entity of a quota; `the_entity` and `the_parts` read them."""
    kinds = [("user", "user"), ("client-id", "client id"), ("ip", "address")]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        for option, noun in reversed(kinds if ip else kinds[:2]):
            function = click.option(
                f"--default-{option}",
                is_flag=True,
                help=f"Default for each {noun} without its own quota.",
            )(function)
            function = click.option(f"--{option}", metavar="NAME", help=f"The {noun}.")(function)
        return function

    return decorate


def the_parts(options: Mapping[str, Any]) -> dict[str, Name]:
    """Return the parts of the entity in the options, by parameter of the admin client."""
    found: dict[str, Name] = {}
    for name in ("user", "client_id", "ip"):
        text, is_default = options.get(name), options.get(f"default_{name}")
        option = name.replace("_", "-")
        if text is not None and is_default:
            raise click.UsageError(f"--{option} and --default-{option} exclude each other")
        if text == "":
            raise click.UsageError(f"--{option} takes a name, not an empty value")
        if text is not None or is_default:
            found[name] = (
                SpecialName.DEFAULT if text is None else canonical_ip(text) if name == IP else text
            )
    return found


def the_entity(options: Mapping[str, Any]) -> QuotaEntity:
    parts = the_parts(options)
    if not parts:
        raise click.UsageError(
            "specify the entity: --user, --client-id, both, --ip, or a default, such as "
            "--default-user"
        )
    return QuotaEntity(**parts)


# Amounts


def parse_amount(key: str, text: str) -> float:
    """Parse a value such as 1048576, 1MiB, 1.5MB/s or 200%.

    Raises click.UsageError if it is malformed or its unit is wrong for the quota.
    """
    found = _AMOUNT.fullmatch(text.strip())
    try:
        number = float(found[1]) if found else math.nan
    except ValueError:
        number = math.nan
    if found is None or not math.isfinite(number):
        raise click.UsageError(f"{key} takes a number, such as 200, 10MB or 10MiB, not {text!r}")
    prefix, unit = found[2] or "", found[3] or ""
    allowed = "B" if key in BYTE_RATES else "%" if UNITS.get(key) == "%" else ""
    if unit and key not in UNITS:
        raise click.UsageError(_unknown(key))
    if unit and (not allowed or not unit.startswith(allowed)):
        raise click.UsageError(f"{key} is in {UNITS[key]}, not {unit}")
    base: int = 1024 if prefix.endswith("i") else 1000
    return number * float(base ** _FACTORS.get(prefix[:1], 0))


def _unknown(key: str) -> str:
    import difflib  # needed for errors only, and importing it takes milliseconds

    close = difflib.get_close_matches(key, UNITS, n=1)
    hint = f": did you mean {close[0]}?" if close else ""
    return f"{key} is not a known quota, so its value must be a number without a unit{hint}"


def parse_quotas(pairs: Mapping[str, str]) -> dict[str, float]:
    return {key: parse_amount(key, text) for key, text in pairs.items()}


def number(value: float) -> int | float:
    """Return a whole number as int, so that it is printed without a decimal point."""
    return int(value) if float(value).is_integer() else value


def amount_text(key: str, value: float, *, is_measured: bool = False) -> str:
    unit = UNITS.get(key, "")
    if key in BYTE_RATES:
        return f"{bytes_text(value, is_measured=is_measured)}/s"
    separator = "" if unit == "%" else " "
    return f"{number(round(value, 3))}{separator}{unit}".rstrip()


def bytes_text(value: float, *, is_measured: bool = False) -> str:
    """Return bytes in the units that quotas are given in: 10 kB for 10000, 16 KiB for 16384.

    A measured value is always a decimal multiple: the other is one by chance.
    """
    is_binary = not is_measured and value >= 1024 and value % 1024 == 0
    base, units = (1024, _BINARY) if is_binary else (1000, _DECIMAL)
    size, unit = float(value), 0
    while round(size, 1) >= base and unit < len(units) - 1:
        size, unit = size / base, unit + 1
    return f"{number(round(size, 1))} {units[unit]}"


# As rows, and in files


def name_text(name: Name) -> str:
    return (
        name
        if isinstance(name, str)
        else ""
        if name is SpecialName.ABSENT
        else SpecialName.DEFAULT.value
    )


def entity_data(entity: QuotaEntity) -> dict[str, str | None]:
    return dict(entity.parts())


def quota_data(entity: QuotaEntity, quotas: Mapping[str, float]) -> Row:
    return {
        "entity": entity_data(entity),
        "quotas": {key: number(value) for key, value in sorted(quotas.items())},
    }


def read_quotas(path: str) -> dict[QuotaEntity, dict[str, float]]:
    """Read the quotas of a JSON or YAML file (`-`: standard input).

    Raises click.UsageError if the file cannot be read or is invalid.
    """
    import yaml

    try:
        with click.open_file(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise click.UsageError(f"{path} is larger than {size_text(MAX_FILE_BYTES)}")
    try:
        items = yaml.load(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        sentence = " ".join(str(error).split())
        raise click.UsageError(f"{path} is neither JSON nor YAML: {sentence}") from None
    if isinstance(items, dict) and items.keys() == {"quotas"}:
        items = items["quotas"]
    if not isinstance(items, list):
        raise click.UsageError(f"{path} must be a list of objects with `entity` and `quotas`")
    found: dict[QuotaEntity, dict[str, float]] = {}
    for index, item in enumerate(items, 1):
        try:
            entity, quotas = _read_item(item)
        except ValueError as error:
            raise click.UsageError(f"{path}: item {index}: {error}") from None
        if entity in found:
            raise click.UsageError(f"{path}: item {index}: {entity} appears twice")
        found[entity] = quotas
    return found


def _read_item(item: Any) -> tuple[QuotaEntity, dict[str, float]]:
    if not isinstance(item, dict) or item.keys() != {"entity", "quotas"}:
        raise ValueError("an item must have `entity` and `quotas`, and no other fields")
    parts, quotas = item["entity"], item["quotas"]
    if not isinstance(parts, dict) or not parts:
        raise ValueError("`entity` must have a user, a client-id, both, or an ip")
    for kind, name in parts.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise ValueError(
                f"`entity` has an unknown {kind!r}; it may have {USER}, {CLIENT_ID} and {IP}"
            )
        if name is not None and (not isinstance(name, str) or not name):
            raise ValueError(f"{kind} must be a string (in quotes), or null for the default")
    if not isinstance(quotas, dict):
        raise ValueError("`quotas` must be an object of names and numbers")  # noqa: TRY004
    return (
        QuotaEntity.of(
            EntityPart(kind, canonical_ip(name) if kind == IP and name else name)
            for kind, name in parts.items()
        ),
        {str(key): _read_value(key, value) for key, value in quotas.items()},
    )


def canonical_ip(name: str) -> str:
    """Return the canonical form of an IP address; other names unchanged, which clusters reject."""
    try:
        return canonical(name)
    except ValueError:
        return name


def _read_value(key: Any, value: Any) -> float:
    if isinstance(value, str):
        try:
            return parse_amount(str(key), value)
        except click.UsageError as error:
            raise ValueError(error.message) from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} must be a number")  # noqa: TRY004
    return float(value)


def note_what_limits_nobody(
    session: Session, changes: Mapping[QuotaEntity, Mapping[str, float | None]]
) -> None:
    """Print a note for each request percentage above 100%: the cluster accepts it without effect.

    The note is only for metaquorum's workers, which have one event loop each. A Kafka broker has
    100% for each of its threads, so values copied from Kafka are accepted.
    """
    above = [
        (entity, key, value)
        for entity, quotas in changes.items()
        for key, value in quotas.items()
        if UNITS.get(key) == "%" and value is not None and value > ALL_OF_A_WORKER
    ]
    if not above or ApiKey.DESCRIBE_QUOTA_USE not in {api.key for api in session.admin.apis()}:
        return
    for entity, key, value in above:
        session.note(
            f"{plain(str(entity))}: {key} {amount_text(key, value)} limits no client: a worker has"
            f" one event loop, and all of its time is {ALL_OF_A_WORKER}%"
        )
