"""Description and alteration of client quotas of any Kafka-compatible cluster (KIP-546)."""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, TypeAlias, TypeVar

from metaquorum.client.cluster import CONTROLLER, Cluster
from metaquorum.client.errors import AdminError, BrokerError, broker_error
from metaquorum.metadata.quota_lookup import (
    CLIENT_ID,
    IP,
    USER,
    EntityPart,
    Name,
    QuotaEntity,
    SpecialName,
)

T = TypeVar("T")

ALTERED_AT_ONCE: Final = 1000  # entities in one request


class Match(Enum):
    """Way to match a part of an entity, besides a name or the default."""

    ANY = "any"


Wanted: TypeAlias = Name | Match
Quotas: TypeAlias = dict[QuotaEntity, dict[str, float]]

_KINDS: Final = (USER, CLIENT_ID, IP)
# MatchType of DescribeClientQuotas.
_EXACT, _DEFAULT, _ANY = 0, 1, 2


async def describe_client_quotas(
    cluster: Cluster, wanted: Mapping[str, Wanted], *, strict: bool
) -> Quotas:
    """Return the matching quotas by entity; `wanted` maps entity types to parts.

    Raises BrokerError if the cluster refuses.
    """
    from metaquorum.wire.messages.describe_client_quotas import (
        ComponentData,
        DescribeClientQuotasRequest,
        DescribeClientQuotasResponse,
    )

    components = [
        ComponentData(
            entity_type=kind,
            match_type=_EXACT
            if isinstance(what, str)
            else _DEFAULT
            if what is SpecialName.DEFAULT
            else _ANY,
            match=what if isinstance(what, str) else None,
        )
        for kind, what in wanted.items()
        if what is not SpecialName.ABSENT
    ]
    request = DescribeClientQuotasRequest(components=components, strict=strict)
    response: DescribeClientQuotasResponse = await cluster.call(request)
    if response.error_code:
        raise broker_error(response.error_code, response.error_message, "client quotas")
    found = {
        _entity((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries or ()
    }
    return {entity: found[entity] for entity in sorted(found, key=in_order)}


def in_order(entity: QuotaEntity) -> tuple[tuple[int, str], ...]:
    """Return a sort key: by user, client id, address; for each names, the default, then absent."""
    return tuple(
        [
            (0, name) if isinstance(name, str) else (1 if name is SpecialName.DEFAULT else 2, "")
            for name in entity
        ]
    )


def _entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    found = [EntityPart(kind, name) for kind, name in parts]
    for part in found:
        if part.type not in _KINDS:
            raise AdminError(
                f"the cluster has a quota for a {part.type}, which this client does not know"
            )
    return QuotaEntity.of(found)


async def alter_client_quotas(
    cluster: Cluster,
    changes: Mapping[QuotaEntity, Mapping[str, float | None]],
    *,
    validate_only: bool,
) -> dict[QuotaEntity, BrokerError | None]:
    """Alter quotas; return None or the error for each entity. Requests are sent at most once."""
    from metaquorum.wire.messages.alter_client_quotas import (
        AlterClientQuotasRequest,
        AlterClientQuotasResponse,
        EntityData,
        EntryData,
        OpData,
    )

    done: dict[QuotaEntity, BrokerError | None] = {}
    for some in _some(list(changes.items())):
        entries = [
            EntryData(
                entity=[
                    EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts()
                ],
                ops=[
                    OpData(key=key, value=0.0 if value is None else value, remove=value is None)
                    for key, value in ops.items()
                ],
            )
            for entity, ops in some
        ]
        request = AlterClientQuotasRequest(entries=entries, validate_only=validate_only)
        response: AlterClientQuotasResponse = await cluster.call(
            request, to=CONTROLLER, changes=True
        )
        for entry in response.entries:
            entity = _entity((part.entity_type, part.entity_name) for part in entry.entity)
            done[entity] = (
                broker_error(entry.error_code, entry.error_message, str(entity))
                if entry.error_code
                else None
            )
    return done


def _some(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), ALTERED_AT_ONCE):
        yield items[start : start + ALTERED_AT_ONCE]
