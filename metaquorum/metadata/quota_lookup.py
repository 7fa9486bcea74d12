"""Lookup of the quota that applies to a client, and of the clients that share it, by eight rules.

    1  user          client-id        5  default user  default client-id
    2  user          default          6  default user  -
    3  user          -                7  -             client-id
    4  default user  client-id        8  -             default client-id

The first rule with a value for the quota applies. A default matches every name of its kind, and
also clients without a client-id: rules 2, 5 and 8 apply to them as to any other client. (This
follows Kafka's documentation; Apache Kafka itself does not limit a client without a client-id.)

Sharing: a rule with both a user and a client-id, by name or by default, gives each pair of user and
client-id a separate quota. A rule with only one of them gives one quota to all clients with the
same user, or with the same client-id. So users or client-ids that match a default never share it.

No I/O and no state. Source: KIP-55, KIP-257.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from metaquorum.wire.primitives.frozen import frozen


class SpecialName(Enum):
    """Value of a user, a client-id or an address of an entity that is not a name."""

    DEFAULT = "<default>"
    ABSENT = "-"


Name: TypeAlias = str | SpecialName


USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

# Names of quotas. The eight rules apply to the first four; the last one is per IP address.
PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
# Prefix of a quota that is measured like the quota of that name, but throttles no client.
OBSERVED: Final = "observed_"
OBSERVED_PRODUCER_BYTE_RATE: Final = OBSERVED + PRODUCER_BYTE_RATE
OBSERVED_CONSUMER_BYTE_RATE: Final = OBSERVED + CONSUMER_BYTE_RATE
OBSERVED_REQUEST_PERCENTAGE: Final = OBSERVED + REQUEST_PERCENTAGE


class EntityPart(NamedTuple):
    """Part of an entity, as in requests and the metadata log; the name None is the default."""

    type: str
    name: str | None


class QuotaEntity(NamedTuple):
    """Entity of a quota: a user, a client-id or both; or an IP address, never with others."""

    user: Name = SpecialName.ABSENT
    client_id: Name = SpecialName.ABSENT
    ip: Name = SpecialName.ABSENT

    @classmethod
    def of(cls, parts: Iterable[EntityPart]) -> "QuotaEntity":
        """Return the entity of these parts, which must have different known types."""
        names = {kind: SpecialName.DEFAULT if name is None else name for kind, name in parts}
        return cls(*(names.get(kind, SpecialName.ABSENT) for kind in (USER, CLIENT_ID, IP)))

    def parts(self) -> tuple[EntityPart, ...]:
        return tuple(
            [
                EntityPart(kind, None if name is SpecialName.DEFAULT else str(name))
                for kind, name in zip((USER, CLIENT_ID, IP), self, strict=True)
                if name is not SpecialName.ABSENT
            ]
        )

    def __str__(self) -> str:
        return ", ".join(
            f"{kind}={SpecialName.DEFAULT.value if name is None else name}"
            for kind, name in self.parts()
        )


class Sharers(NamedTuple):
    """Clients that share one quota: those with this user and this client-id (None: any)."""

    user: str | None
    client_id: str | None


@frozen
class Rule:
    """One of the eight rules, resolved for one client."""

    precedence: int  # from 1 to 8, or `BY_CONFIG`
    entity: QuotaEntity
    value: float | None  # None: no quota is set
    sharers: Sharers


NO_CLIENT_ID: Final = ""
BY_CONFIG: Final = 9  # precedence of the worker's default quota, after all rules


def rules_for(
    quotas: Mapping[QuotaEntity, Mapping[str, float]],
    key: str,
    user: str,
    client_id: str | None,
    *,
    default: float | None = None,
) -> Iterator[Rule]:
    """Yield the eight rules for that client in order, each with its value of the quota `key`.

    `default` adds the worker's default quota as a ninth rule, separate for each client-id.
    """
    name = client_id or NO_CLIENT_ID
    # No quota can name an empty client-id, so only defaults match a client without one.
    named: Name = name or SpecialName.DEFAULT
    for precedence, entity in enumerate(
        (
            QuotaEntity(user, named),
            QuotaEntity(user, SpecialName.DEFAULT),
            QuotaEntity(user, SpecialName.ABSENT),
            QuotaEntity(SpecialName.DEFAULT, named),
            QuotaEntity(SpecialName.DEFAULT, SpecialName.DEFAULT),
            QuotaEntity(SpecialName.DEFAULT, SpecialName.ABSENT),
            QuotaEntity(SpecialName.ABSENT, named),
            QuotaEntity(SpecialName.ABSENT, SpecialName.DEFAULT),
        ),
        1,
    ):
        values = quotas.get(entity)
        sharers = Sharers(
            None if entity.user is SpecialName.ABSENT else user,
            None if entity.client_id is SpecialName.ABSENT else name,
        )
        # Without a client-id, the named rules do not match; the next rule is the default.
        is_named_row = precedence in (1, 4, 7) and not name
        value = None if values is None or is_named_row else values.get(key)
        yield Rule(precedence, entity, value, sharers)
    if default is not None:
        yield Rule(BY_CONFIG, QuotaEntity(), default, Sharers(None, name))


def applying(
    quotas: Mapping[QuotaEntity, Mapping[str, float]],
    key: str,
    user: str,
    client_id: str | None,
    *,
    default: float | None = None,
) -> Rule | None:
    """Return the first rule with a value; None if the client has no quota."""
    for rule in rules_for(quotas, key, user, client_id, default=default):
        if rule.value is not None:
            return rule
    return None
