"""Client quotas by the admin client, tested against this project's node and Apache Kafka."""

from collections.abc import Iterator

import pytest

from metaquorum.client import BrokerError, socket_transport
from metaquorum.client.administration.quotas import ALTERED_AT_ONCE, Match
from metaquorum.client.socket_transport import BlockingAdmin
from metaquorum.metadata.quota_lookup import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    QuotaEntity,
    SpecialName,
)
from metaquorum.wire.primitives.errors import ErrorCode
from tests.nodes import PATIENCE_S, Peer, unique, wait_until


@pytest.fixture
def admin(either: Peer) -> Iterator[BlockingAdmin]:
    with socket_transport.connect(either.bootstrap, timeout_s=PATIENCE_S) as cluster:
        yield BlockingAdmin(cluster)


def test_quotas_are_altered_and_described(admin: BlockingAdmin) -> None:
    user = unique("user")
    alone = QuotaEntity(user)
    pair, any_client = QuotaEntity(user, "c"), QuotaEntity(user, SpecialName.DEFAULT)
    rates = {PRODUCER_BYTE_RATE: 1000.0, CONSUMER_BYTE_RATE: 2000.0}
    done = admin.alter_client_quotas(
        {alone: {PRODUCER_BYTE_RATE: 1.0}, pair: dict(rates), any_client: dict(rates)}
    )
    assert done == {alone: None, pair: None, any_client: None}
    of_user = {pair: rates, any_client: rates, alone: {PRODUCER_BYTE_RATE: 1.0}}
    wait_until(lambda: admin.describe_client_quotas(user=user) == of_user)
    assert list(admin.describe_client_quotas(user=user)) == list(of_user)

    def strictly(client_id: str | SpecialName | Match) -> set[QuotaEntity]:
        return set(admin.describe_client_quotas(user=user, client_id=client_id, strict=True))

    assert strictly(SpecialName.ABSENT) == {alone}
    assert strictly(SpecialName.DEFAULT) == {any_client}
    assert strictly("c") == {pair}
    assert strictly(Match.ANY) == {pair, any_client}
    assert alone in admin.describe_client_quotas(user=Match.ANY, strict=True)
    assert pair not in admin.describe_client_quotas(user=Match.ANY, strict=True)

    gone = {entity: dict.fromkeys(quotas) for entity, quotas in of_user.items()}
    admin.alter_client_quotas(gone, validate_only=True)
    assert admin.describe_client_quotas(user=user) == of_user
    admin.alter_client_quotas(gone)
    wait_until(lambda: admin.describe_client_quotas(user=user) == {})


def test_one_entity_is_refused_and_another_is_not(admin: BlockingAdmin) -> None:
    user = unique("user")
    good, bad = QuotaEntity(user), QuotaEntity(user, "c")
    done = admin.alter_client_quotas({good: {PRODUCER_BYTE_RATE: 5.0}, bad: {"no_such": 5.0}})
    assert done[good] is None
    error = done[bad]
    assert isinstance(error, BrokerError)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert str(error).startswith(f"user={user}, client-id=c: ")
    wait_until(lambda: set(admin.describe_client_quotas(user=user)) == {good})
    admin.alter_client_quotas({good: {PRODUCER_BYTE_RATE: None}})


def test_more_than_one_request_can_carry(admin: BlockingAdmin) -> None:
    user = unique("user")
    many = {
        QuotaEntity(user, str(n)): {PRODUCER_BYTE_RATE: 5.0} for n in range(ALTERED_AT_ONCE + 1)
    }
    assert admin.alter_client_quotas(many, validate_only=True) == dict.fromkeys(many)
