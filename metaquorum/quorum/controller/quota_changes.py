"""The active controller's rules for client quotas, and the filters that describe them.

All changes of one entity are one batch: either all are accepted or none. Only values that differ
are written. Source: KIP-546, KIP-599, KIP-612; messages and error codes of Apache Kafka 4.3.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Final

from metaquorum.config.addresses import canonical
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.quota_lookup import (
    CLIENT_ID,
    IP,
    OBSERVED_CONSUMER_BYTE_RATE,
    OBSERVED_PRODUCER_BYTE_RATE,
    OBSERVED_REQUEST_PERCENTAGE,
    USER,
    EntityPart,
    QuotaEntity,
)
from metaquorum.metadata.quota_lookup import CONNECTION_CREATION_RATE as CONNECTION_CREATION_RATE
from metaquorum.metadata.quota_lookup import CONSUMER_BYTE_RATE as CONSUMER_BYTE_RATE
from metaquorum.metadata.quota_lookup import CONTROLLER_MUTATION_RATE as CONTROLLER_MUTATION_RATE
from metaquorum.metadata.quota_lookup import PRODUCER_BYTE_RATE as PRODUCER_BYTE_RATE
from metaquorum.metadata.quota_lookup import REQUEST_PERCENTAGE as REQUEST_PERCENTAGE
from metaquorum.metadata.records import ClientQuotaRecord
from metaquorum.quorum.controller.decision import Decision
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen

# Quotas of clients, and whether each accepts whole numbers only.
CLIENT_QUOTAS: Final[Mapping[str, bool]] = {
    PRODUCER_BYTE_RATE: True,
    CONSUMER_BYTE_RATE: True,
    REQUEST_PERCENTAGE: False,
    CONTROLLER_MUTATION_RATE: False,
    OBSERVED_PRODUCER_BYTE_RATE: True,
    OBSERVED_CONSUMER_BYTE_RATE: True,
    OBSERVED_REQUEST_PERCENTAGE: False,
}
# Quotas of IP addresses, whose rate Kafka stores in 32 bits.
IP_QUOTAS: Final[Mapping[str, bool]] = {CONNECTION_CREATION_RATE: True}
MAX_HINTED_CHARACTERS: Final = 100  # part of a mistyped key that a hint is looked up for
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_WHOLE_WITHIN: Final = 1e-6


@frozen
class QuotaOp:
    """New value of the quota `key`; None removes it."""

    key: str
    value: float | None


@frozen
class QuotaChange:
    """Quota changes of one entity, which is unchecked as the client sent it."""

    parts: tuple[EntityPart, ...]
    ops: Sequence[QuotaOp]


def change_quotas(image: MetadataImage, change: QuotaChange) -> Decision[KafkaError | None]:
    """Decide the quota changes of one entity; the answer is None or the error."""
    try:
        entity = checked_entity(change.parts)
        values = IP_QUOTAS if entity.parts()[0].type == IP else CLIENT_QUOTAS
        if len({op.key for op in change.ops}) < len(change.ops):
            raise _invalid("Each quota of an entity must appear at most once")
        for op in change.ops:
            if op.value is not None:
                _check_value(values, op.key, op.value)
    except KafkaError as error:
        return Decision(error)
    return Decision(None, list(_records(image, entity, change.ops)))


def checked_entity(parts: Sequence[EntityPart]) -> QuotaEntity:
    """Return the entity of `parts`. Raises KafkaError if such an entity cannot have quotas."""
    for kind, name in parts:
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    kinds = Counter(kind for kind, _ in parts)
    if not kinds:
        raise _invalid("Invalid empty client quota entity")
    for kind, count in kinds.items():
        if count > 1:
            raise _invalid(f"Invalid client quota entity, duplicate entity entry {kind}")
    entity = QuotaEntity.of(parts)
    if IP in kinds:
        if len(kinds) > 1:
            raise _invalid(
                "Invalid quota entity combination, IP entity should"
                "not be combined with User or ClientId"
            )
        if isinstance(entity.ip, str):
            return QuotaEntity(ip=_canonical(entity.ip))
    return entity


def _canonical(address: str) -> str:
    """Return the address in the form that identifies connections.

    Host names are rejected, because nodes may resolve them differently; Kafka accepts them.
    """
    try:
        return canonical(address)
    except ValueError:
        raise _invalid(f"{address} is not a valid IP or resolvable host.") from None


def _check_value(known: Mapping[str, bool], key: str, value: float) -> None:
    if key not in known:
        raise _invalid(f"Invalid configuration key {key}{_hint(known, key)}")
    if not value > 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    if value == math.inf:
        raise _invalid(f"Quota {key} must be a finite number")
    if not known[key]:
        return
    most, name = (_INT32_MAX, "an INT") if key in IP_QUOTAS else (_INT64_MAX, "a LONG")
    if value > most:
        raise _invalid(f"Proposed value for {key} is too large for {name}.")
    if value % 1.0 > _WHOLE_WITHIN:
        raise _invalid(f"{key} cannot be a fractional value.")


def _hint(known: Mapping[str, bool], key: str) -> str:
    import difflib  # needed for errors only, and importing it takes milliseconds

    if key in CLIENT_QUOTAS or key in IP_QUOTAS:
        return ""  # a quota of other entities
    close = difflib.get_close_matches(key[:MAX_HINTED_CHARACTERS], known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _records(
    image: MetadataImage, entity: QuotaEntity, ops: Sequence[QuotaOp]
) -> Iterator[ClientQuotaRecord]:
    own = image.client_quotas.get(entity, {})
    parts = entity.parts()
    for key, value in {op.key: op.value for op in ops}.items():
        if own.get(key) != value:
            yield ClientQuotaRecord(parts, key, value)


class MatchType(IntEnum):
    """Condition on one part of an entity, numbered as in DescribeClientQuotas."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2  # the entity has such a part, with any name or the default


@frozen
class FilterPart:
    """Condition of a filter. `match_type` is a `MatchType`, or an unknown number from a client."""

    type: str
    match_type: int
    name: str | None


class QuotaFilter:
    """Filter of entities. If `strict`, entities must not have parts that the filter omits."""

    def __init__(self, parts: Sequence[FilterPart], *, strict: bool) -> None:
        """Check and create the filter. Raises KafkaError if it is invalid."""
        self._exact: dict[str, str | None] = {}
        self._any: set[str] = set()
        self._strict = strict
        for part in parts:
            self._add(part)
        named = self._exact.keys() | self._any
        if IP in named and len(named) > 1:
            raise _invalid(
                "Invalid entity filter component combination. IP filter component should not be"
                " used with user or clientId filter component."
            )

    def _add(self, part: FilterPart) -> None:
        kind, name = part.type, part.name
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in self._exact or kind in self._any:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if part.match_type == MatchType.EXACT:
            if name is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            with suppress(ValueError):  # a name that is not an address matches no quota
                name = canonical(name) if kind == IP else name
            self._exact[kind] = name
            return
        words = {MatchType.DEFAULT: "MATCH_TYPE_DEFAULT", MatchType.ANY: "MATCH_TYPE_SPECIFIED"}
        if part.match_type not in words:
            raise _invalid(f"Unknown match type {part.match_type}")
        match_type = MatchType(part.match_type)
        if name is not None:
            raise _invalid(
                f"Request specified {words[match_type]}, but also specified a match string."
            )
        if match_type is MatchType.DEFAULT:
            self._exact[kind] = None
        else:
            self._any.add(kind)

    def meets(self, entity: QuotaEntity) -> bool:
        parts = dict(entity.parts())
        if self._strict and len(parts) != len(self._exact) + len(self._any):
            return False
        return self._any <= parts.keys() and all(
            kind in parts and parts[kind] == name for kind, name in self._exact.items()
        )


def _invalid(words: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, words)
