"""Replication without proofs while workers of an earlier version are upgraded: when it is accepted.

Each condition alone refuses; `tests/dataplane/replication/test_replica_claims.py` has the attacks.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio
import trio.testing

from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.replication.earlier_workers import (
    LOG_EVERY_S,
    RESOLVE_AGAIN_S,
    EarlierFollowers,
    is_earlier,
    normalized,
)
from metaquorum.dataplane.replication.replica_authentication import claim_error, fetch_claim_error
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import METADATA_VERSION, Endpoint, RegisterWorkerRecord
from metaquorum.quorum.controller.features import SUPPORTED_FEATURES, UNSTATED_FEATURES
from metaquorum.runtime.system import RealNetwork
from metaquorum.wire.messages.fetch import FetchRequest, ReplicaState
from metaquorum.wire.primitives.errors import ErrorCode
from tests.nodes import PATIENCE_S

E = ErrorCode
LISTENER = "IN"
EARLIER, NEW, UNKNOWN = 2, 3, 4
EPOCH = 77
HERE, ELSEWHERE = "192.0.2.2", "192.0.2.9"


def registered(worker_id: int, features: Any, host: str = HERE) -> RegisterWorkerRecord:
    endpoints = (
        Endpoint("OUT", "192.0.2.3", 9092, "PLAINTEXT"),
        Endpoint(LISTENER, host, 9093, "PLAINTEXT"),
    )
    return RegisterWorkerRecord(
        worker_id, bytes(16), EPOCH, endpoints, "h", None, (), features, fenced=False
    )


def image(level: int | None = 1, *workers: RegisterWorkerRecord) -> MetadataImage:
    known = workers or (
        registered(EARLIER, UNSTATED_FEATURES),
        registered(NEW, SUPPORTED_FEATURES),
    )
    return replace(
        MetadataImage.empty("AClusterOfThese"),
        features={} if level is None else {METADATA_VERSION: level},
        workers={each.worker_id: each for each in known},
    )


class Resolver(RealNetwork):
    """Resolves names from a table; counts."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.in_thread = 0  # names that the system resolves at present
        self.answers = trio.Event()
        self.answers.set()

    async def addresses(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        if host in self.names:
            await self.answers.wait()
            return self.names[host]
        self.in_thread += 1
        try:
            return await super().addresses(host)
        finally:
            self.in_thread -= 1


@dataclass
class Leader:
    """The rule, with the metadata and the time that it sees."""

    image: MetadataImage = field(default_factory=image)
    now: float = 1000.0
    network: Resolver = field(default_factory=Resolver)

    def __post_init__(self) -> None:
        self.followers = EarlierFollowers(
            self.network, LISTENER, lambda: self.now, lambda: self.image
        )

    def error(self, client: Client, worker_id: int = EARLIER, epoch: int = EPOCH) -> ErrorCode:
        state = ReplicaState(replica_id=worker_id, replica_epoch=epoch)
        message = FetchRequest(replica_state=state)
        return fetch_claim_error(client, message, self.image, self.followers)

    async def final_error(self, client: Client, *claim: int) -> ErrorCode:
        """Return the error once hosts are resolved."""
        self.error(client, *claim)
        await trio.testing.wait_all_tasks_blocked()
        while self.network.in_thread:
            await trio.sleep(0.001)
            await trio.testing.wait_all_tasks_blocked()
        return self.error(client, *claim)


def client(host: str = HERE, listener: str = LISTENER) -> Client:
    return Client((host, 40_000), listener)


def leading(story: Callable[[Leader], Awaitable[None]]) -> None:
    async def main() -> None:
        leader = Leader()
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(leader.followers.run)
                await story(leader)
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_an_earlier_worker_is_accepted_from_an_address_of_its_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(leader: Leader) -> None:
        follower = client()
        assert leader.error(follower) == E.TOPIC_AUTHORIZATION_FAILED, "not resolved yet"
        assert not follower.is_follower
        assert await leader.final_error(follower) == E.NONE
        assert follower.is_follower
        assert leader.error(client("192.0.2.3")) == E.NONE, "of its other listener"
        asked = list(leader.network.asked)
        for _ in range(100):
            assert leader.error(client()) == E.NONE
        assert leader.network.asked == asked, "each host is resolved once"
        assert [each.getMessage() for each in caplog.records] == [
            "worker 2, of an earlier version, replicates without a proof of its id: any program at"
            " its address 192.0.2.2 can fetch as this worker until it is upgraded"
        ]
        leader.now += LOG_EVERY_S
        assert leader.error(client()) == E.NONE
        assert len(caplog.records) == 2
        assert claim_error(follower, EARLIER) == E.TOPIC_AUTHORIZATION_FAILED, "fetches only"

    with caplog.at_level(logging.WARNING):
        leading(story)


@pytest.mark.parametrize(
    ("metadata", "follower", "claim", "code"),
    [
        (image(2), client(), (EARLIER,), E.TOPIC_AUTHORIZATION_FAILED),
        (image(None), client(), (EARLIER,), E.TOPIC_AUTHORIZATION_FAILED),
        (image(), client(), (NEW,), E.TOPIC_AUTHORIZATION_FAILED),
        (image(), client(), (UNKNOWN,), E.TOPIC_AUTHORIZATION_FAILED),
        (image(), client(ELSEWHERE), (EARLIER,), E.TOPIC_AUTHORIZATION_FAILED),
        (image(), client("127.0.0.1"), (EARLIER,), E.TOPIC_AUTHORIZATION_FAILED),
        (image(), client(listener="OUT"), (EARLIER,), E.TOPIC_AUTHORIZATION_FAILED),
        (image(), client(), (EARLIER, EPOCH - 1), E.STALE_BROKER_EPOCH),
        (image(), client(), (EARLIER, 2**62), E.STALE_BROKER_EPOCH),
        (image(), client(), (EARLIER, -1), E.STALE_BROKER_EPOCH),
        (image(), client(), (EARLIER,), E.NONE),
    ],
)
def test_each_condition_alone_refuses(
    metadata: MetadataImage, follower: Client, claim: tuple[int, ...], code: ErrorCode
) -> None:
    async def story(leader: Leader) -> None:
        leader.image = metadata
        peer = Client(follower.address, follower.listener)
        assert await leader.final_error(peer, *claim) == code

    leading(story)


def test_a_fetch_without_a_broker_epoch_is_no_earlier_workers() -> None:
    async def story(leader: Leader) -> None:
        follower = client()
        assert await leader.final_error(follower) == E.NONE
        asked = FetchRequest(replica_id=EARLIER)  # to v14
        error = fetch_claim_error(follower, asked, leader.image, leader.followers)
        assert error == E.TOPIC_AUTHORIZATION_FAILED

    leading(story)


def test_a_connection_that_began_to_prove_an_id_claims_none_without_a_proof() -> None:
    async def story(leader: Leader) -> None:
        assert await leader.final_error(client()) == E.NONE
        follower = client()
        follower.replica.has_begun = True
        assert leader.error(follower) == E.TOPIC_AUTHORIZATION_FAILED

    leading(story)


@pytest.mark.parametrize(
    "after",
    [
        image(2),
        image(1, registered(EARLIER, SUPPORTED_FEATURES)),
        image(1, replace(registered(EARLIER, SUPPORTED_FEATURES), broker_epoch=EPOCH + 5)),
        image(1, registered(NEW, SUPPORTED_FEATURES)),
    ],
)
def test_the_end_of_the_upgrade_ends_it_for_open_connections(after: MetadataImage) -> None:
    async def story(leader: Leader) -> None:
        follower = client()
        assert await leader.final_error(follower) == E.NONE
        leader.image = after
        assert not follower.is_follower, "its quotas hold at once"
        assert await leader.final_error(follower) == E.TOPIC_AUTHORIZATION_FAILED
        assert not follower.is_follower

    leading(story)


def test_a_restart_with_the_earlier_version_resolves_its_hosts_again() -> None:
    async def story(leader: Leader) -> None:
        follower = client()
        assert await leader.final_error(follower) == E.NONE
        again = replace(registered(EARLIER, UNSTATED_FEATURES, ELSEWHERE), broker_epoch=EPOCH + 5)
        leader.image = image(1, again)
        assert not follower.is_follower
        assert await leader.final_error(client(ELSEWHERE), EARLIER, EPOCH + 5) == E.NONE
        assert leader.error(follower, EARLIER, EPOCH + 5) == E.TOPIC_AUTHORIZATION_FAILED

    leading(story)


def test_a_change_of_its_fencing_keeps_it() -> None:
    async def story(leader: Leader) -> None:
        follower = client()
        assert await leader.final_error(follower) == E.NONE
        fenced = replace(registered(EARLIER, UNSTATED_FEATURES), fenced=True)
        leader.image = image(1, fenced)
        assert follower.is_follower
        assert leader.error(follower) == E.NONE

    leading(story)


def test_a_name_is_resolved_again_after_a_while_if_it_has_another_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(leader: Leader) -> None:
        leader.image = image(1, registered(EARLIER, UNSTATED_FEATURES, "two.example"))
        leader.network.names["two.example"] = [ELSEWHERE]
        for _ in range(20):
            assert await leader.final_error(client()) == E.TOPIC_AUTHORIZATION_FAILED
        assert leader.network.asked.count("two.example") == 1
        assert len(caplog.records) == 1
        assert "192.0.2.3, 192.0.2.9" in caplog.records[0].getMessage()
        leader.network.names["two.example"] = [HERE]
        leader.now += RESOLVE_AGAIN_S
        assert await leader.final_error(client()) == E.NONE
        assert leader.network.asked.count("two.example") == 2

    with caplog.at_level(logging.WARNING):
        leading(story)


@pytest.mark.parametrize("name", ["a name\nof no host", "." * 3, "\u00e4" * 300])
def test_a_name_that_cannot_be_resolved_accepts_nobody(name: str) -> None:
    async def story(leader: Leader) -> None:
        leader.image = image(1, registered(EARLIER, UNSTATED_FEATURES, name))
        assert await leader.final_error(client()) == E.TOPIC_AUTHORIZATION_FAILED
        assert leader.error(client("192.0.2.3")) == E.NONE, "its other listener has an address"

    leading(story)


def test_a_slow_name_is_requested_once_and_logs_nothing_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(leader: Leader) -> None:
        leader.image = image(1, registered(EARLIER, UNSTATED_FEATURES, "two.example"))
        leader.network.answers = trio.Event()
        leader.network.names["two.example"] = [HERE]
        for _ in range(5):
            assert await leader.final_error(client()) == E.TOPIC_AUTHORIZATION_FAILED
            leader.now += RESOLVE_AGAIN_S
        leader.network.answers.set()
        assert await leader.final_error(client()) == E.NONE
        assert leader.network.asked.count("two.example") == 1
        assert len(caplog.records) == 1

    with caplog.at_level(logging.WARNING):
        leading(story)


def test_which_workers_are_earlier_ones() -> None:
    earlier, new = registered(EARLIER, UNSTATED_FEATURES), registered(NEW, SUPPORTED_FEATURES)
    assert is_earlier(image(1), earlier)
    assert is_earlier(image(1), registered(EARLIER, ()))
    assert not is_earlier(image(1), new)
    assert not is_earlier(image(2), earlier)
    assert not is_earlier(image(None), earlier)


def test_addresses_are_compared_by_value() -> None:
    assert normalized("::ffff:192.0.2.1") == normalized("192.0.2.1")
    assert normalized("2001:db8:0::1") == normalized("2001:db8::1")
    assert normalized("fe80::1%eth0") == normalized("fe80::1")
    assert normalized("127.0.1.1") == normalized("::1") == normalized("::ffff:127.0.0.1")
    assert normalized("192.0.2.1") != normalized("192.0.2.2")
