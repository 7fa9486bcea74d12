"""Which quota applies to a client, with whom it shares it, and why: eight rules in one order.

    1  user          client-id        5  default user  default client-id
    2  user          default          6  default user  -
    3  user          -                7  -             client-id
    4  default user  client-id        8  -             default client-id

The first rule that has a value for the quota in question applies. A default stands for every name
of its kind, and for none: who gives no client-id is taken by 2, 5 and 8 like who gives any. (So the
documents say that this follows; Apache Kafka of today lets a client without a client-id pass by.)

Who shares: a rule that speaks of both, by name or by default, gives each pair of user and client-id
its own allowance; a rule that speaks of one gives one to all that are alike in that one, whatever
the other. A default is therefore never shared between those it stands for.

Plain state. Source: KIP-55, KIP-257.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from wire.primitives.frozen import frozen


class SpecialName(Enum):
    """What an entity may say of a user, a client-id or an address instead of a name."""

    DEFAULT = "<default>"
    ABSENT = "-"


Name: TypeAlias = str | SpecialName


USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

# What can be limited. The eight rules are for the first four; the last is of addresses.
PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
# Before the name of a quota: it is counted like that one, and delays nobody.
OBSERVED: Final = "observed_"
OBSERVED_PRODUCER_BYTE_RATE: Final = OBSERVED + PRODUCER_BYTE_RATE
OBSERVED_CONSUMER_BYTE_RATE: Final = OBSERVED + CONSUMER_BYTE_RATE
OBSERVED_REQUEST_PERCENTAGE: Final = OBSERVED + REQUEST_PERCENTAGE


class EntityPart(NamedTuple):
    """One part of an entity, as clients and the metadata log say it; a name of None is default."""

    type: str
    name: str | None


class QuotaEntity(NamedTuple):
    """Whom a quota is for. What speaks of an address speaks of nothing else."""

    user: Name = SpecialName.ABSENT
    client_id: Name = SpecialName.ABSENT
    ip: Name = SpecialName.ABSENT

    @classmethod
    def of(cls, parts: Iterable[EntityPart]) -> "QuotaEntity":
        """The entity that has these parts, each of another one of the types that there are."""
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
    """All clients with this user and this client-id (None: whatever it is) use one allowance."""

    user: str | None
    client_id: str | None


@frozen
class Rule:
    """One of the eight, as it looks to one client."""

    precedence: int  # from 1 to 8, or `BY_CONFIG`
    entity: QuotaEntity
    value: float | None  # None: nothing is set here
    sharers: Sharers


NO_CLIENT_ID: Final = ""
BY_CONFIG: Final = 9  # the precedence of a worker's own default, behind all rules


def rules_for(
    quotas: Mapping[QuotaEntity, Mapping[str, float]],
    key: str,
    user: str,
    client_id: str | None,
    *,
    default: float | None = None,
) -> Iterator[Rule]:
    """The eight rules for that client in their order, each with its value of the quota `key`.

    `default`: the worker's own, of which each client-id has its share: a ninth rule, of nobody.
    """
    name = client_id or NO_CLIENT_ID
    # Nobody can be called by no name: who gives none is met by defaults alone.
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
        # By name, a client without one matches nothing; the default of that row is the next rule.
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
    """The first rule with a value; None: the client is not limited."""
    for rule in rules_for(quotas, key, user, client_id, default=default):
        if rule.value is not None:
            return rule
    return None
