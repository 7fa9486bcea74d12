"""SaslHandshake and SaslAuthenticate without SASL; see also `test_sasl_authenticator`."""

from metaquorum.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from metaquorum.wire.messages.sasl_handshake import SaslHandshakeRequest
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.serving import Simulated, simulated
from tests.wire.messages.golden import exchanges


@simulated()
async def test_a_listener_without_sasl_says_so_as_a_real_kafka_does(node: Simulated) -> None:
    client = await node.connect()
    for key, asked_for in (
        (ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest),
        (ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest),
    ):
        for version, asked, golden in exchanges(key, asked_for):
            assert await client.call(key, asked, version) == golden
