"""The APIs of delegation tokens, which do not exist here: the answers of Apache Kafka 4.3.1."""

from metaquorum.security.sasl import PLAIN
from metaquorum.wire.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from metaquorum.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from metaquorum.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from metaquorum.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.network.test_sasl_authenticator import log_in, secured
from tests.dataplane.serving import Simulated, simulated
from tests.wire.messages.golden import exchanges

REQUESTS = (
    (ApiKey.CREATE_DELEGATION_TOKEN, CreateDelegationTokenRequest),
    (ApiKey.RENEW_DELEGATION_TOKEN, RenewDelegationTokenRequest),
    (ApiKey.EXPIRE_DELEGATION_TOKEN, ExpireDelegationTokenRequest),
    (ApiKey.DESCRIBE_DELEGATION_TOKEN, DescribeDelegationTokenRequest),
)


@simulated()
async def test_who_has_not_authenticated_is_refused_as_by_a_real_kafka(node: Simulated) -> None:
    client = await node.connect()
    for key, asked_for in REQUESTS:
        for version, asked, golden in exchanges(key, asked_for):
            assert await client.call(key, asked, version) == golden, (key, version)


@secured()
async def test_who_has_authenticated_is_told_that_there_are_no_tokens(node: Simulated) -> None:
    client = await node.connect()
    await log_in(client, PLAIN)
    for key, asked_for in REQUESTS:
        answer = await client.call(key, asked_for())
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        assert getattr(answer, "expiry_timestamp_ms", 0) == 0
    asked = CreateDelegationTokenRequest(owner_principal_name="bob")
    answer = await client.call(ApiKey.CREATE_DELEGATION_TOKEN, asked)
    assert (answer.principal_type, answer.principal_name) == ("User", "bob")
    requester = answer.token_requester_principal_type, answer.token_requester_principal_name
    assert requester == ("User", "alice")
    asked.renewers = [CreatableRenewers(principal_type="Group", principal_name="g")]
    answer = await client.call(ApiKey.CREATE_DELEGATION_TOKEN, asked)
    assert answer.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
    assert answer.expiry_timestamp_ms == -1
