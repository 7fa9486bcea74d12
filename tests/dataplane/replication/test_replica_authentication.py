"""Authentication of followers as plain state, and the replica ids that a connection may claim."""

import logging
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.instruments.log_rate_limit import ADDRESS_LINES
from metaquorum.dataplane.network.client import NO_WORKER, Client
from metaquorum.dataplane.network.replies import CloseConnectionError
from metaquorum.dataplane.replication.earlier_workers import EarlierFollowers
from metaquorum.dataplane.replication.replica_authentication import (
    ReplicaAuthenticationError,
    ReplicaAuthenticator,
    address_digest,
    claim_error,
    fetch_claim_error,
    prove,
)
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import RegisterWorkerRecord
from metaquorum.quorum.channel import ChannelIdentity, Endpoint, HandshakeError, StreamKind
from metaquorum.quorum.channel.handshake import NONCE_BYTES, PROOF_BYTES, DialerHandshake, Hello
from metaquorum.quorum.controller.quota_changes import CONSUMER_BYTE_RATE
from metaquorum.runtime import Runtime
from metaquorum.runtime.system import RealClock, RealDisk, RealNetwork
from metaquorum.wire.messages.authenticate_replica import AuthenticateReplicaRequest
from metaquorum.wire.messages.fetch import FetchRequest, ReplicaState
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.replication.test_replica_claims import LEADER, claim, row_of, set_quota
from tests.dataplane.replication.test_replicas import fill, latest
from tests.dataplane.replication.together import CLUSTER_ID, PORT, Together, together
from tests.dataplane.serving import RawClient, batch_of

E = ErrorCode
CLUSTER = "AClusterOfThese"
SECRET = b"a secret of this cluster"
OTHER_SECRET = b"a secret of another cluster"
ME, OTHER, THIRD = 1, 2, 3
LISTENER = "IN"
ADDRESS = ("node-1", 9092)


def endpoint(node_id: int, secret: bytes = SECRET, cluster_id: str = CLUSTER) -> Endpoint:
    runtime = Runtime(RealClock(), RealNetwork(), RealDisk(), random.Random(node_id))
    return Endpoint(runtime, ChannelIdentity(cluster_id, node_id, secret))


def authenticator(node_id: int = ME, secret: bytes | None = SECRET) -> ReplicaAuthenticator:
    own = None if secret is None else endpoint(node_id, secret)
    return ReplicaAuthenticator(own, LISTENER, ADDRESS, lambda: 0.0)


def client(listener: str = LISTENER) -> Client:
    return Client(("192.0.2.1", 1), listener)


def shake(dialing: DialerHandshake, replicas: ReplicaAuthenticator, who: Client) -> None:
    """Exchange both messages. Raises ReplicaAuthenticationError or HandshakeError."""
    while dialing.established is None:
        dialing.receive(replicas.respond(who, dialing.data_to_send()))


def test_two_messages_prove_which_worker_it_is_and_who_the_leader_is() -> None:
    replicas, who = authenticator(), client()
    dialing = prove(endpoint(OTHER), ME, ADDRESS)
    assert not who.is_follower
    dialing.receive(replicas.respond(who, dialing.data_to_send()))
    assert not who.is_follower, "a hello is not a proof"
    assert dialing.established is None
    dialing.receive(replicas.respond(who, dialing.data_to_send()))
    assert (who.is_follower, who.replica.worker_id) == (True, OTHER)
    assert dialing.established is not None
    assert dialing.established.peer.sender == ME


def test_a_connection_has_one_attempt() -> None:
    replicas, who = authenticator(), client()
    with pytest.raises(ReplicaAuthenticationError):
        replicas.respond(who, b"x")
    with pytest.raises(CloseConnectionError):
        shake(prove(endpoint(OTHER), ME, ADDRESS), replicas, who)
    assert who.replica.worker_id == NO_WORKER


def test_who_has_proved_it_is_one_worker_cannot_become_another() -> None:
    replicas, who = authenticator(), client()
    shake(prove(endpoint(OTHER), ME, ADDRESS), replicas, who)
    with pytest.raises(CloseConnectionError):
        replicas.respond(who, prove(endpoint(THIRD), ME, ADDRESS).data_to_send())
    assert who.replica.worker_id == OTHER


@pytest.mark.parametrize(
    ("dialing", "words"),
    [
        (prove(endpoint(OTHER, OTHER_SECRET), ME, ADDRESS), "another cluster secret"),
        (prove(endpoint(OTHER, cluster_id="Elsewhere"), ME, ADDRESS), "cluster 'Elsewhere'"),
        (prove(endpoint(OTHER), THIRD, ADDRESS), "the peer expects node 3"),
        (prove(endpoint(ME), ME, ADDRESS), "id 1 is negative or this node's own"),
        (prove(endpoint(-1), ME, ADDRESS), "id -1 is negative or this node's own"),
        (prove(endpoint(OTHER), ME, ("node-1", 9093)), "dialed an address that is not"),
        (endpoint(OTHER).dialing(StreamKind.RPC, ME, address_digest(*ADDRESS)), "another kind"),
        (endpoint(OTHER).dialing(StreamKind.PEER, ME, address_digest(*ADDRESS)), "another kind"),
    ],
)
def test_a_proof_for_anything_else_proves_nothing(
    dialing: DialerHandshake, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    replicas, who = authenticator(), client()
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(ReplicaAuthenticationError, match=words) as refused,
    ):
        shake(dialing, replicas, who)
    assert who.replica.worker_id == NO_WORKER
    assert words in caplog.text
    with pytest.raises(HandshakeError):  # the reply has the reason
        dialing.receive(refused.value.answer)


def test_only_the_listener_for_workers_takes_proofs() -> None:
    with pytest.raises(ReplicaAuthenticationError, match="connect to the listener IN, not OUT"):
        shake(prove(endpoint(OTHER), ME, ADDRESS), authenticator(), client("OUT"))


def test_a_node_without_a_secret_has_no_followers() -> None:
    with pytest.raises(ReplicaAuthenticationError, match="no cluster secret"):
        shake(prove(endpoint(OTHER), ME, ADDRESS), authenticator(secret=None), client())


def test_proofs_of_one_connection_are_none_on_another() -> None:
    """A replayed handshake is refused, because the leader's nonce has changed."""
    replicas, first, second = authenticator(), client(), client()
    dialing = prove(endpoint(OTHER), ME, ADDRESS)
    hello = dialing.data_to_send()
    dialing.receive(replicas.respond(first, hello))
    proof = dialing.data_to_send()
    replicas.respond(first, proof)
    assert first.replica.worker_id == OTHER
    replicas.respond(second, hello)
    with pytest.raises(ReplicaAuthenticationError, match="another cluster secret"):
        replicas.respond(second, proof)
    assert second.replica.worker_id == NO_WORKER


def test_what_a_worker_says_when_it_dials_cannot_be_sent_back_to_it() -> None:
    """Worker 1 dials an attacker as worker 2; the attacker reflects its messages to worker 1."""
    victim = endpoint(ME)
    replicas = ReplicaAuthenticator(victim, LISTENER, ADDRESS, lambda: 0.0)
    dialed = prove(victim, OTHER, ADDRESS)
    hello = dialed.data_to_send()
    with pytest.raises(ReplicaAuthenticationError, match="the peer expects node 2"):
        replicas.respond(client(), hello)
    # The attacker sends its own hello, then the victim's proof instead of its own.
    who = client()
    mirrored = Hello(
        StreamKind.REPLICA, OTHER, ME, address_digest(*ADDRESS), 1, bytes(NONCE_BYTES), CLUSTER
    )
    answer = replicas.respond(who, mirrored.encode())
    dialed.receive(answer[:1] + mirrored.encode())
    with pytest.raises(ReplicaAuthenticationError, match="another cluster secret"):
        replicas.respond(who, dialed.data_to_send())
    assert who.replica.worker_id == NO_WORKER


@pytest.mark.parametrize("size", [0, 1, PROOF_BYTES - 1, PROOF_BYTES + 1, 256, 1 << 20])
def test_messages_of_other_sizes_end_the_attempt(size: int) -> None:
    replicas, who = authenticator(), client()
    with pytest.raises(ReplicaAuthenticationError):
        replicas.respond(who, bytes(size))
    replicas, who = authenticator(), client()
    replicas.respond(who, prove(endpoint(OTHER), ME, ADDRESS).data_to_send())
    with pytest.raises(ReplicaAuthenticationError):
        replicas.respond(who, bytes(size))
    assert who.replica.exchange is None


@given(st.lists(st.binary(max_size=300), max_size=3), st.booleans())
def test_without_the_secret_nothing_proves_anything(tokens: list[bytes], begun: bool) -> None:
    replicas, who = authenticator(), client()
    if begun:
        replicas.respond(who, prove(endpoint(OTHER, OTHER_SECRET), ME, ADDRESS).data_to_send())
    for token in tokens:
        try:
            replicas.respond(who, token)
        except (ReplicaAuthenticationError, CloseConnectionError):
            break
    assert who.replica.worker_id == NO_WORKER


def test_strangers_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    replicas = authenticator()
    with caplog.at_level(logging.WARNING):
        for number in range(10 * ADDRESS_LINES):
            with pytest.raises(ReplicaAuthenticationError):
                shake(prove(endpoint(OTHER), 1000 + number, ADDRESS), replicas, client())
    assert len(caplog.records) <= ADDRESS_LINES + 1


def test_names_of_strangers_write_no_lines_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(ReplicaAuthenticationError):
        shake(prove(endpoint(OTHER, cluster_id="a\nb"), ME, ADDRESS), authenticator(), client())
    assert "\n" not in caplog.records[0].getMessage()


# Claims of replica ids


def proven(worker_id: int) -> Client:
    who = client()
    if worker_id != NO_WORKER:
        shake(prove(endpoint(worker_id), ME, ADDRESS), authenticator(), who)
    return who


@pytest.mark.parametrize(
    ("proves", "replica_id", "code"),
    [
        (NO_WORKER, -1, E.NONE),
        (OTHER, -1, E.NONE),
        (NO_WORKER, -2, E.NONE),
        (OTHER, OTHER, E.NONE),
        (OTHER, THIRD, E.TOPIC_AUTHORIZATION_FAILED),
        (NO_WORKER, OTHER, E.TOPIC_AUTHORIZATION_FAILED),
        (NO_WORKER, 0, E.TOPIC_AUTHORIZATION_FAILED),
        (NO_WORKER, 2**31 - 1, E.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_a_replica_id_is_believed_by_proof_alone(
    proves: int, replica_id: int, code: ErrorCode
) -> None:
    assert claim_error(proven(proves), replica_id) == code


EPOCH = 77
IMAGE = replace(
    MetadataImage.empty(CLUSTER),
    workers={
        OTHER: RegisterWorkerRecord(OTHER, bytes(16), EPOCH, (), "h", None, (), (), fenced=False)
    },
)
EARLIER = EarlierFollowers(RealNetwork(), LISTENER, lambda: 0.0, lambda: IMAGE)


@pytest.mark.parametrize(
    ("proves", "replica_id", "epoch", "code"),
    [
        (NO_WORKER, -1, -1, E.NONE),
        (NO_WORKER, -2, EPOCH, E.NONE),
        (NO_WORKER, OTHER, EPOCH, E.TOPIC_AUTHORIZATION_FAILED),
        (NO_WORKER, OTHER, -1, E.TOPIC_AUTHORIZATION_FAILED),
        (NO_WORKER, OTHER, 2**62, E.TOPIC_AUTHORIZATION_FAILED),
        (THIRD, OTHER, EPOCH, E.TOPIC_AUTHORIZATION_FAILED),
        (OTHER, OTHER, EPOCH, E.NONE),
        (OTHER, OTHER, EPOCH - 1, E.STALE_BROKER_EPOCH),
        (OTHER, OTHER, EPOCH + 1, E.STALE_BROKER_EPOCH),
        (OTHER, OTHER, 2**62, E.STALE_BROKER_EPOCH),
        (OTHER, OTHER, -1, E.STALE_BROKER_EPOCH),
        (THIRD, THIRD, EPOCH, E.STALE_BROKER_EPOCH),  # not registered
        (OTHER, -1, EPOCH, E.NONE),
    ],
)
def test_a_fetch_carries_exactly_the_broker_epoch_of_the_metadata(
    proves: int, replica_id: int, epoch: int, code: ErrorCode
) -> None:
    state = ReplicaState(replica_id=replica_id, replica_epoch=epoch)
    asked = FetchRequest(replica_state=state)
    assert fetch_claim_error(proven(proves), asked, IMAGE, EARLIER) == code


def test_a_fetch_without_an_epoch_is_no_replicas() -> None:
    asked = FetchRequest(replica_id=OTHER)  # to v14
    error = fetch_claim_error(proven(OTHER), asked, IMAGE, EARLIER)
    assert error == E.TOPIC_AUTHORIZATION_FAILED
    asked = FetchRequest(replica_id=-1)
    assert fetch_claim_error(proven(OTHER), asked, IMAGE, EARLIER) == E.NONE


# Complete nodes


async def prove_over(raw: RawClient, worker_id: int, leader_id: int = LEADER) -> None:
    """Authenticate the connection as that worker, with the secret of `Together`."""
    secret = b"a secret of the cluster, and long"
    dialing = prove(endpoint(worker_id, secret, CLUSTER_ID), leader_id, (f"node-{leader_id}", PORT))
    while dialing.established is None:
        message = AuthenticateReplicaRequest(auth_bytes=dialing.data_to_send())
        answer = await raw.call(ApiKey.AUTHENTICATE_REPLICA, message)
        assert not answer.error_code, answer
        dialing.receive(bytes(answer.auth_bytes))


@together()
async def test_a_proven_worker_is_believed_as_far_as_the_metadata_go(cluster: Together) -> None:
    await cluster.create("t", (LEADER, 2, 3), min_insync_replicas=2)
    raw, writer = await cluster.connect(LEADER), await cluster.connect(LEADER)
    await fill(writer, "t", 5)
    await cluster.until(lambda: cluster.replica(2, "t").high_watermark == 5)
    for follower in (2, 3):
        cluster.world.internet.cut(f"node-{follower}", f"node-{LEADER}")
    await fill(writer, "t", 3, acks=1)
    leader = cluster.replica(LEADER, "t")
    await prove_over(raw, 2)
    true_epoch = cluster.worker(LEADER).image.workers[2].broker_epoch
    for epoch in (true_epoch - 1, true_epoch + 1, 2**62, -1):
        answer = await claim(raw, cluster, 2, epoch=epoch, offset=8)
        assert (answer.error_code, answer.responses) == (E.STALE_BROKER_EPOCH, [])
    answer = await claim(raw, cluster, 3, offset=8)
    assert row_of(answer).error_code == E.TOPIC_AUTHORIZATION_FAILED
    assert (await latest(raw, "t", 3)).offset == 5
    followers = {one.replica_id: one.log_end_offset for one in leader.leader_state.followers}
    assert followers == {2: 5, 3: 5}
    assert (await latest(raw, "t", 2)).offset == 8
    answer = await claim(raw, cluster, 2, offset=8)
    assert (answer.error_code, row_of(answer).error_code) == (E.NONE, E.NONE)
    assert leader.leader_state.follower(2).log_end_offset == 8
    assert leader.high_watermark == 5, "worker 3 is in sync, too"


@together()
async def test_a_quota_of_clients_does_not_hold_for_a_proven_worker_alone(
    cluster: Together,
) -> None:
    """The proof counts like any request; later requests of the connection do not count."""
    await cluster.create("t", (LEADER, 2, 3))
    raw, writer = await cluster.connect(LEADER), await cluster.connect(LEADER)
    await writer.produce("t", batch_of(bytes(50_000)))
    await set_quota(cluster, CONSUMER_BYTE_RATE, 1000.0)
    await prove_over(raw, 2)
    for _ in range(3):
        answer = await claim(raw, cluster, 2)
        assert row_of(answer).records
        assert not answer.throttle_time_ms
