"""A listener with SASL, in raw frames and virtual time: authentication and its failures."""

import logging
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from metaquorum.dataplane.network.connection import AUTHENTICATION_SECONDS
from metaquorum.dataplane.network.login_counts import LoginCounts
from metaquorum.dataplane.network.sasl_authenticator import MAX_REQUESTS
from metaquorum.dataplane.quotas.quota_status import QuotaStatus
from metaquorum.metadata.quota_lookup import USER, EntityPart
from metaquorum.quorum.controller.quota_changes import QuotaChange, QuotaOp
from metaquorum.quorum.controller.scram_changes import ScramUpsertion, UserScramChange
from metaquorum.runtime import sleep
from metaquorum.security.sasl import PLAIN, client_mechanism
from metaquorum.security.scram import ScramMechanism, salted_password
from metaquorum.simulations.kernel.world import World
from metaquorum.wire.messages.api_versions import ApiVersionsRequest
from metaquorum.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from metaquorum.wire.messages.metadata import MetadataRequest
from metaquorum.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from metaquorum.wire.messages.sasl_handshake import SaslHandshakeRequest
from metaquorum.wire.primitives.errors import ErrorCode as E
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.changes import change_quotas, change_scram_credentials
from tests.dataplane.serving import (
    RawClient,
    Simulated,
    batch_of,
    produce_message,
    request,
    run_simulated,
)
from tests.suite.first_argument import given_first

SCRAM_256, SCRAM_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
SALT = b"a salt of some length"
PLAIN_USERS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' username="alice" password="s3cret" user_alice="s3cret" user_bob="b0b";'
)
CONFIGS = {
    "listeners": "SASL_PLAINTEXT://server:9092,PLAINTEXT://server:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN_USERS,
}
Story = Callable[[Simulated], Awaitable[None]]


def run_secured(scenario: Story, **more: str) -> World:
    """Run `scenario` on a node where alice has the password s3cret for all mechanisms."""

    async def prepared(node: Simulated) -> None:
        upsertions = tuple(
            ScramUpsertion(mechanism, 4096, SALT, salted_password(mechanism, "s3cret", SALT, 4096))
            for mechanism in ScramMechanism
        )
        change = UserScramChange("alice", upsertions=upsertions)
        await change_scram_credentials(node.worker.controller_client, change)
        await scenario(node)

    dotted = CONFIGS | {name.replace("_", "."): value for name, value in more.items()}
    return run_simulated(prepared, dotted=dotted)


def secured(**more: str) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run an async test with the node of `run_secured`."""
    return given_first(partial(run_secured, **more))


async def handshake(client: RawClient, mechanism: str, version: int = 1) -> Any:
    asked = SaslHandshakeRequest(mechanism=mechanism)
    return await client.call(ApiKey.SASL_HANDSHAKE, asked, version)


async def authenticate(client: RawClient, token: bytes, version: int = 2) -> Any:
    asked = SaslAuthenticateRequest(auth_bytes=token)
    return await client.call(ApiKey.SASL_AUTHENTICATE, asked, version)


async def log_in(
    client: RawClient, mechanism: str, username: str = "alice", password: str = "s3cret"
) -> Any:
    """Authenticate; return the last response."""
    assert (await handshake(client, mechanism)).error_code == 0
    chosen = client_mechanism(mechanism, username, password, Random(1))
    token: bytes | None = chosen.first()
    answer = None
    while token is not None:
        answer = await authenticate(client, token)
        if answer.error_code:
            return answer
        token = chosen.respond(answer.auth_bytes)
    return answer


async def is_served(client: RawClient) -> bool:
    try:
        return bool((await client.call(ApiKey.METADATA, MetadataRequest(topics=None))).brokers)
    except (EOFError, OSError):
        return False


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_256, SCRAM_512])
@secured()
async def test_who_shows_who_it_is_is_served(node: Simulated, mechanism: str) -> None:
    client = await node.connect()
    asked = ApiVersionsRequest(client_software_name="c", client_software_version="1")
    assert (await client.call(ApiKey.API_VERSIONS, asked)).error_code == 0
    answer = await log_in(client, mechanism)
    assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
    assert await is_served(client)


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_256, SCRAM_512])
def test_a_wrong_password_is_answered_after_a_while_and_closed(
    mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(node: Simulated) -> None:
        texts = set()
        for username, password in (("alice", "wr0ng"), ("nobody", "s3cret")):
            client, began = await node.connect(), node.now
            answer = await log_in(client, mechanism, username, password)
            assert answer.error_code == E.SASL_AUTHENTICATION_FAILED
            assert node.now - began >= 0.1
            assert await client.is_closed()
            texts.add(answer.error_message)
        assert len(texts) == 1, "the texts differ for existing users"

    with caplog.at_level(logging.INFO, logger="metaquorum.dataplane"):
        run_secured(scenario)
    lines = [record.getMessage() for record in caplog.records if mechanism in record.getMessage()]
    assert len(lines) == 2
    assert f"authentication as 'alice' by {mechanism} failed" in lines[0]
    assert not any("wr0ng" in line or "s3cret" in line for line in lines)


@secured()
async def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(
    node: Simulated,
) -> None:
    for version in (0, 1):
        client = await node.connect()
        answer = await handshake(client, "GSSAPI", version)
        assert answer.error_code == E.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == [PLAIN, SCRAM_256, SCRAM_512]
        assert await client.is_closed()


@secured()
async def test_other_requests_of_a_stranger_close_its_connection(node: Simulated) -> None:
    assert not await is_served(await node.connect())
    client = await node.connect()
    await handshake(client, SCRAM_256)
    assert not await is_served(client)
    client = await node.connect()
    await handshake(client, SCRAM_256)
    await client.ask(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism=PLAIN))
    assert await client.is_closed()


@secured()
async def test_to_authenticate_without_a_handshake_is_an_error(node: Simulated) -> None:
    client = await node.connect()
    assert (await authenticate(client, b"x")).error_code == E.ILLEGAL_SASL_STATE
    assert await client.is_closed()


@secured()
async def test_what_is_pipelined_behind_the_last_proof_is_answered(node: Simulated) -> None:
    client = await node.connect()
    parts: list[tuple[ApiKey, Any, int]] = [
        (ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism=PLAIN), 1),
        (ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=b"\0alice\0s3cret"), 2),
        (ApiKey.METADATA, MetadataRequest(topics=None), 12),
    ]
    await client.send(b"".join(request(key, message, v) for key, message, v in parts))
    answers = [await client.answer(key, version) for key, _, version in parts]
    assert answers[2].brokers


@secured()
async def test_after_handshake_v0_the_messages_are_bare_frames(node: Simulated) -> None:
    client = await node.connect()
    assert (await handshake(client, SCRAM_256, version=0)).error_code == 0
    scram = client_mechanism(SCRAM_256, "alice", "s3cret", Random(1))
    token: bytes | None = scram.first()
    while token is not None:
        await client.send(struct.pack(">i", len(token)) + token)
        token = scram.respond(await client.frame())
    assert await is_served(client)

    client = await node.connect()
    assert (await handshake(client, PLAIN, version=0)).error_code == 0
    await client.send(struct.pack(">i", 12) + b"\0alice\0wrong")
    assert await client.is_closed()


@secured()
async def test_who_says_nothing_is_cut_off_after_a_while(node: Simulated) -> None:
    silent, began = await node.connect(), node.now
    assert await silent.is_closed()
    assert AUTHENTICATION_SECONDS <= node.now - began < AUTHENTICATION_SECONDS + 1
    known = await node.connect()
    await log_in(known, PLAIN)
    await node.world.sleep(2 * AUTHENTICATION_SECONDS)
    assert await is_served(known)


@secured()
async def test_a_stranger_may_send_only_small_frames_and_few(node: Simulated) -> None:
    large = await node.connect()
    await large.send(struct.pack(">i", 600_000))
    assert await large.is_closed()
    busy = await node.connect()
    asked = ApiVersionsRequest(client_software_name="c", client_software_version="1")
    for _ in range(MAX_REQUESTS):
        await busy.call(ApiKey.API_VERSIONS, asked)
    await busy.ask(ApiKey.API_VERSIONS, asked)
    assert await busy.is_closed()
    known = await node.connect()
    await log_in(known, PLAIN)
    for _ in range(2 * MAX_REQUESTS):
        assert await is_served(known)


@secured(connections_max_reauth_ms="10000")
async def test_a_session_ends_unless_it_is_shown_again_who_it_is(node: Simulated) -> None:
    faithful, lazy = await node.connect(), await node.connect()
    for client in (faithful, lazy):
        assert (await log_in(client, SCRAM_256)).session_lifetime_ms == 10_000
    await node.world.sleep(8)
    assert (await log_in(faithful, SCRAM_256)).session_lifetime_ms == 10_000
    await node.world.sleep(4)
    assert await is_served(faithful)
    assert not await is_served(lazy)


@secured()
async def test_a_client_may_re_authenticate_for_as_long_as_it_is_connected(node: Simulated) -> None:
    """Requests before authentication are limited, but not those of all authentications together."""
    client = await node.connect()
    for _ in range(MAX_REQUESTS):
        assert (await log_in(client, PLAIN)).error_code == 0
        assert await is_served(client)


@secured()
async def test_who_one_is_and_how_one_shows_it_stay_the_same(node: Simulated) -> None:
    client = await node.connect()
    await log_in(client, PLAIN)
    refused = await log_in(client, PLAIN, "bob", "b0b")
    assert refused.error_code == E.SASL_AUTHENTICATION_FAILED
    assert "Cannot change principals" in refused.error_message
    assert await client.is_closed()
    client = await node.connect()
    await log_in(client, PLAIN)
    assert (await handshake(client, SCRAM_256)).error_code == E.ILLEGAL_SASL_STATE
    assert await client.is_closed()


@secured()
async def test_a_credential_that_is_deleted_lets_nobody_in(node: Simulated) -> None:
    change = UserScramChange("alice", (int(ScramMechanism.SCRAM_SHA_256),))
    await change_scram_credentials(node.worker.controller_client, change)
    await node.on_machine.stop()
    await node.on_machine.start()
    gone, there = await node.connect(), await node.connect()
    assert (await log_in(gone, SCRAM_256)).error_code == E.SASL_AUTHENTICATION_FAILED
    assert (await log_in(there, SCRAM_512)).error_code == 0


@secured()
async def test_clients_are_told_of_addresses_of_the_listener_by_which_they_came(
    node: Simulated,
) -> None:
    inside = RawClient(await node.runtime.network.connect("server", 9093))
    outside = await node.connect()
    await log_in(outside, PLAIN)
    for client, port in ((inside, 9093), (outside, 9092)):
        answer = await client.call(ApiKey.METADATA, MetadataRequest(topics=None))
        assert [broker.port for broker in answer.brokers] == [port]


@secured()
async def test_passwords_are_shown_to_nobody(node: Simulated) -> None:
    client = await node.connect()
    await log_in(client, PLAIN)
    asked = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
        ],
        include_synonyms=True,
    )
    (result,) = (await client.call(ApiKey.DESCRIBE_CONFIGS, asked)).results
    by_name = {entry.name: entry for entry in result.configs}
    secret = by_name["listener.name.sasl_plaintext.plain.sasl.jaas.config"]
    assert (secret.is_sensitive, secret.value) == (True, None)
    assert "s3cret" not in repr(result)


@secured()
async def test_quotas_of_a_user_hold_for_whoever_is_logged_in_as_it(node: Simulated) -> None:
    change = QuotaChange((EntityPart(USER, "alice"),), [QuotaOp("controller_mutation_rate", 1e-6)])
    await change_quotas(node.worker.controller_client, change)
    change = QuotaChange((EntityPart(USER, "alice"),), [QuotaOp("producer_byte_rate", 100.0)])
    await change_quotas(node.worker.controller_client, change)
    client = await node.connect()
    await log_in(client, SCRAM_256)
    assert (await client.create("t")).error_code == 0
    assert (await client.create("u")).error_code == E.THROTTLING_QUOTA_EXCEEDED
    (muted,) = QuotaStatus(node.worker.quotas).muted()
    assert (muted.principal, muted.key) == ("User:alice", "controller_mutation_rate")
    client = await node.connect()
    await log_in(client, PLAIN)
    asked = produce_message("t", batch_of(bytes(2000)))
    answer = await client.call(ApiKey.PRODUCE, asked, 9)
    assert answer.throttle_time_ms == pytest.approx(11_000, rel=0.05)  # for about 2 kB
    (use,) = QuotaStatus(node.worker.quotas).uses("producer_byte_rate")
    assert (use.rule.sharers.user, use.rule.precedence) == ("alice", 3)


@secured(connections_max_reauth_ms="2000")
async def test_logins_are_counted_by_listener(node: Simulated) -> None:
    client = await node.connect()
    await log_in(client, SCRAM_256)
    await log_in(client, SCRAM_256)  # re-authentication
    await sleep(node.runtime.clock, 3)
    assert not await is_served(client)
    await log_in(await node.connect(), PLAIN, password="wr0ng")
    client = await node.connect()
    await log_in(client, PLAIN)
    await log_in(client, PLAIN, password="wr0ng")
    node_ = node.on_machine.node
    assert node_ is not None
    assert node_.worker_role is not None
    logins = node_.worker_role.logins["SASL_PLAINTEXT"]
    assert {name: getattr(logins, name) for name in LoginCounts.__slots__} == {
        "successful_authentication_total": 2,
        "failed_authentication_total": 1,
        "successful_reauthentication_total": 1,
        "failed_reauthentication_total": 1,
        "expired_connections_killed_count": 1,
    }


@secured()
async def test_every_kind_of_failed_authentication_is_counted(node: Simulated) -> None:
    """As in Kafka: not only wrong passwords, but every end before authentication."""
    node_ = node.on_machine.node
    assert node_ is not None
    assert node_.worker_role is not None
    logins = node_.worker_role.logins["SASL_PLAINTEXT"]

    await handshake(await node.connect(), "GSSAPI")
    assert logins.failed_authentication_total == 1, "a mechanism that is not enabled"
    await authenticate(await node.connect(), b"\0alice\0s3cret")
    assert logins.failed_authentication_total == 2, "no handshake"
    assert not await is_served(await node.connect())
    assert logins.failed_authentication_total == 3, "another request"
    client = await node.connect()
    for _ in range(MAX_REQUESTS):
        await client.call(ApiKey.API_VERSIONS, ApiVersionsRequest())
    with pytest.raises((EOFError, OSError)):
        await client.call(ApiKey.API_VERSIONS, ApiVersionsRequest())
    assert logins.failed_authentication_total == 4, "too many requests"
    assert await (await node.connect()).is_closed()
    assert logins.failed_authentication_total == 5, "no request in time"

    client = await node.connect()
    await log_in(client, PLAIN)
    await handshake(client, SCRAM_256)
    assert logins.failed_reauthentication_total == 1, "another mechanism than before"
    assert logins.failed_authentication_total == 5
