"""Workers that authenticate to each other with SASL."""

from metaquorum.wire.messages.metadata import MetadataRequest
from metaquorum.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from metaquorum.wire.messages.sasl_handshake import SaslHandshakeRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.replication.test_replica_claims import claim, row_of
from tests.dataplane.replication.test_replicas import fill
from tests.dataplane.replication.together import PORT, Together, run_together, together
from tests.dataplane.serving import listening

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"


def logging_in(node_id: int, password: str = "a password") -> dict[str, object]:
    """Configure a listener with SASL PLAIN between workers, and PLAINTEXT for clients."""
    return listening(
        {
            "listeners": f"PLAINTEXT://node-{node_id}:{PORT},INSIDE://node-{node_id}:19093",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:SASL_PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "connections.max.reauth.ms": "2000",
            "listener.name.inside.plain.sasl.jaas.config": (
                f'{MODULE} username="worker" password="{password}" user_worker="a password";'
            ),
        }
    )


@together(node_options=logging_in)
async def test_followers_log_in_to_their_leader_and_again_in_time(cluster: Together) -> None:
    await cluster.create("t", (1, 2, 3), min_insync_replicas=3)
    client = await cluster.connect(1)
    for _ in range(5):  # most sessions end between two rounds
        await fill(client, "t", 5)
        await cluster.world.sleep(1.5)
    assert cluster.state("t", 2).isr == (1, 2, 3)


@together(node_options=logging_in, listener_name_inside_max_connections=0)
async def test_followers_come_in_where_all_places_of_their_listener_are_taken(
    cluster: Together,
) -> None:
    """A follower's connection is provisional until its first fetch after authentication."""
    await cluster.create("t", (1, 2, 3), min_insync_replicas=3)
    client = await cluster.connect(1)
    for _ in range(5):  # longer than a session and a provisional connection
        await fill(client, "t", 5)
        await cluster.world.sleep(3)
    assert cluster.state("t", 2).isr == (1, 2, 3)
    stranger = await cluster.connect(1, 19093)
    await stranger.ask(ApiKey.METADATA, MetadataRequest())
    assert await stranger.is_closed()


@together(node_options=logging_in)
async def test_a_client_that_logs_in_as_the_workers_do_is_still_no_replica(
    cluster: Together,
) -> None:
    """A principal does not identify a replica: only the cluster's secret does."""
    await cluster.create("t", (1, 2, 3), min_insync_replicas=2)
    writer = await cluster.connect(1)
    await fill(writer, "t", 5)
    liar = await cluster.connect(1, 19093)
    await liar.call(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism="PLAIN"))
    login = SaslAuthenticateRequest(auth_bytes=b"\0worker\0a password")
    assert not (await liar.call(ApiKey.SASL_AUTHENTICATE, login)).error_code
    for version in (12, 17):
        answer = await claim(liar, cluster, 2, version=version, offset=5)
        assert row_of(answer).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert row_of(await claim(liar, cluster, -1)).records


def test_who_does_not_know_the_password_follows_nobody() -> None:
    async def scenario(cluster: Together) -> None:
        await cluster.create("t", (1, 2, 3))
        client = await cluster.connect(1)
        await fill(client, "t", 5)
        await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2))
        assert cluster.replica(3, "t").log.log_end_offset == 0

    run_together(
        scenario,
        node_options=lambda n: logging_in(n, "wrong" if n == 3 else "a password"),
        replica_lag_time_max_ms=2000,
    )
