"""Connection limits, and the connection that is closed when one is reached, as plain state."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.connection_limits import (
    MAX_CONNECTIONS_OF_ONE_WORKER,
    ConnectionLimiter,
    ConnectionLimits,
    PeerListener,
    ProvisionalConnection,
)
from metaquorum.dataplane.network.replies import DelayedReply, PendingReply, Reply
from metaquorum.dataplane.network.sasl_session import SaslSession
from metaquorum.wire.messages.api_versions import ApiVersionsRequest
from metaquorum.wire.messages.authenticate_replica import AuthenticateReplicaRequest
from metaquorum.wire.messages.fetch import FetchRequest, ReplicaState
from metaquorum.wire.messages.metadata import MetadataRequest
from metaquorum.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.protocol.headers import encode_request
from metaquorum.wire.schema.message import Message

MANY = 1000
WORKER, EPOCH = 2, 77
PROOF = b"the last message of a proof"


@dataclass(eq=False)
class Connection:
    listener: str = "OUT"
    host: str = "192.0.2.1"
    progress: int = 0
    is_muted: bool = False
    client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = Client((self.host, 1), self.listener)


def peers(*, is_shared: bool = False, are_any: bool = True) -> PeerListener:
    return PeerListener(
        "OUT" if is_shared else "IN",
        is_shared,
        lambda: are_any,
    )


def places(most: int = MANY, per_ip: int = MANY, **by_listener: int) -> ConnectionLimiter:
    return ConnectionLimiter(ConnectionLimits(most, per_ip, by_listener), peers())


def filled(found: ConnectionLimiter, count: int, listener: str = "OUT") -> list[Connection]:
    connections = [Connection(listener) for _ in range(count)]
    for connection in connections:
        assert found.add(connection) is None
    return connections


def test_each_limit_says_by_its_name_what_is_lacking() -> None:
    found = places(3, 2, OUT=1)
    filled(found, 1)
    assert found.exceeded_limit("OUT", "192.0.2.9") == (
        "1 connections to this listener are open, the limit of listener.name.out.max.connections"
    )
    filled(found, 1, "OTHER")
    assert found.exceeded_limit("OTHER", "192.0.2.1") == (
        "2 connections from this address are open, the limit of max.connections.per.ip"
    )
    assert found.exceeded_limit("OTHER", "192.0.2.9") is None
    assert found.add(Connection("OTHER", "192.0.2.9")) is None
    assert found.exceeded_limit("OTHER", "192.0.2.9") == (
        "3 connections are open, the limit of max.connections"
    )


def test_the_limit_of_open_files_is_one_of_connections() -> None:
    found = ConnectionLimiter(ConnectionLimits(3, MANY, descriptors=2), peers())
    filled(found, 2)
    assert found.exceeded_limit("OUT", "192.0.2.9") == (
        "2 connections are open, as many as the limit of open files (ulimit -n) of this process"
        " permits"
    )
    found.limits = ConnectionLimits(2, MANY, descriptors=3)
    assert found.exceeded_limit("OUT", "192.0.2.9") == (
        "2 connections are open, the limit of max.connections"
    )


def test_some_addresses_may_have_another_number() -> None:
    found = ConnectionLimiter(ConnectionLimits(MANY, 1, by_ip={"192.0.2.1": 2, "2001:db8::1": 0}))
    filled(found, 1)
    assert found.exceeded_limit("OUT", "192.0.2.1") is None
    filled(found, 1)
    overrides = "are open, the limit of max.connections.per.ip.overrides"
    assert (
        found.exceeded_limit("OUT", "192.0.2.1") == f"2 connections from this address {overrides}"
    )
    assert (
        found.exceeded_limit("OUT", "2001:db8::1") == f"0 connections from this address {overrides}"
    )
    assert found.exceeded_limit("OUT", "192.0.2.2") is None


def test_who_left_has_left_its_place_once() -> None:
    found = places(2, 2, OUT=2)
    first, _ = filled(found, 2)
    found.remove(first)
    found.remove(first)
    assert len(found) == 1
    assert found.exceeded_limit("OUT", first.host) is None
    filled(found, 1)
    assert found.exceeded_limit("OUT", first.host)


def test_by_the_listener_between_workers_the_least_recently_used_of_clients_makes_room() -> None:
    found = places(4)
    first, second, third = filled(found, 3)
    (inside,) = filled(found, 1, "IN")
    assert found.exceeded_limit("IN", inside.host) is None
    first.progress = 5
    assert found.add(Connection("IN")) is second
    assert len(found) == 4
    first.progress = 6
    assert found.add(Connection("IN")) is third
    assert found.add(Connection("IN")) is first
    assert found.add(Connection("IN")) is None  # only workers: no connection can be closed for it
    assert len(found) == 5


def test_who_is_muted_waits_for_the_node_and_is_not_unused() -> None:
    found = places(2)
    muted, other = filled(found, 2)
    muted.is_muted = True
    assert found.add(Connection("IN")) is other


def test_that_listener_has_its_own_limit_and_that_of_addresses_as_any() -> None:
    found = places(2, 2, IN=1)
    filled(found, 1, "IN")
    assert found.exceeded_limit("IN", "192.0.2.9")
    assert places(per_ip=0).exceeded_limit("IN", "192.0.2.9")


def test_only_there_and_where_other_workers_are_there_may_be_one() -> None:
    limits = ConnectionLimits(0, MANY)
    assert ConnectionLimiter(limits, peers()).peer_listener("IN")
    assert not ConnectionLimiter(limits, peers()).peer_listener("OUT")
    assert not ConnectionLimiter(limits, peers(are_any=False)).peer_listener("IN")
    assert not ConnectionLimiter(limits).peer_listener("IN")
    shared = ConnectionLimiter(limits, peers(is_shared=True))
    assert shared.peer_listener("OUT")
    assert shared.exceeded_limit("OUT", "192.0.2.1")


def test_a_worker_that_passed_takes_the_place_of_a_client_of_its_listener() -> None:
    found = ConnectionLimiter(ConnectionLimits(MANY, MANY, {"OUT": 2}), peers(is_shared=True))
    filled(found, 3, "OTHER")
    first, _ = filled(found, 2)
    worker = Connection()
    worker.client.replica.worker_id = WORKER
    assert found.add_worker_connection(worker, WORKER) == [first]
    assert len(found) == 5


def test_one_worker_has_so_many_places_by_trial_and_the_oldest_makes_room() -> None:
    found = ConnectionLimiter(ConnectionLimits(0, 0), peers(is_shared=True))
    workers = [Connection() for _ in range(MAX_CONNECTIONS_OF_ONE_WORKER + 2)]
    for worker in workers:
        worker.client.replica.worker_id = WORKER
    *before, last, another = workers
    assert [found.add_worker_connection(each, WORKER) for each in before] == [[]] * len(before)
    assert found.add_worker_connection(last, WORKER) == [workers[0]]
    assert found.add_worker_connection(another, 3) == []
    assert len(found) == MAX_CONNECTIONS_OF_ONE_WORKER + 1


# Provisional connections


class OnTrial:
    def __init__(self) -> None:
        self.told: list[Any] = []
        self.client = Client(("192.0.2.1", 1), "IN")
        self.provisional = ProvisionalConnection(
            self._handle, self.told.append, lambda: self.told.append(None)
        )

    def _handle(self, frame: memoryview, client: Client) -> Reply | PendingReply | DelayedReply:
        if bytes(frame).endswith(PROOF + b"\0") and (client.sasl is None or client.sasl.is_open):
            client.replica.worker_id = WORKER
        return bytes(frame)

    def ask(self, api: int, message: Message, version: int) -> bool:
        """Return whether the request is handled."""
        frame = bytearray(encode_request(api, version, 1, "test", message)[4:])
        return bool(self.provisional.handle(memoryview(frame), self.client))

    def prove(self, token: bytes = PROOF) -> bool:
        message = AuthenticateReplicaRequest(auth_bytes=token)
        return self.ask(ApiKey.AUTHENTICATE_REPLICA, message, 0)


def fetch(worker_id: int, epoch: int) -> FetchRequest:
    return FetchRequest(replica_state=ReplicaState(replica_id=worker_id, replica_epoch=epoch))


def test_a_worker_proves_which_it_is_and_is_served_from_then_on() -> None:
    one = OnTrial()
    assert one.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 3)
    assert one.prove(b"the first message")
    assert not one.told
    assert one.prove()
    assert one.told == [WORKER]
    assert one.client.is_follower
    assert one.ask(ApiKey.METADATA, MetadataRequest(), 12)
    assert one.told == [WORKER]


@pytest.mark.parametrize(
    ("api", "message", "version"),
    [
        (ApiKey.METADATA, MetadataRequest(), 12),
        (ApiKey.FETCH, fetch(WORKER, EPOCH), 17),
        (ApiKey.FETCH, FetchRequest(), 17),
        (ApiKey.FETCH, FetchRequest(replica_id=WORKER), 12),
    ],
)
def test_whoever_asks_for_anything_before_a_proof_is_not_served_any_more(
    api: int, message: Message, version: int
) -> None:
    one = OnTrial()
    assert not one.ask(api, message, version)
    assert not one.prove()
    assert one.told == [None]
    assert not one.client.is_follower


def test_where_clients_say_who_they_are_a_worker_does_that_first() -> None:
    one = OnTrial()
    session = one.client.sasl = SaslSession(lambda: None)
    assert one.ask(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=b""), 2)
    assert one.prove()  # the authenticator behind it refuses the request
    assert not one.told
    session.is_open = True
    assert one.prove()
    assert one.told == [WORKER]
