"""A quota that is removed and set again: use counts all the time, also while there is no quota."""

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from random import Random
from time import thread_time
from typing import Any

import pytest
import trio

from metaquorum.config.resolution import WorkerLayers
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.quotas.allowance_table import Allowance, AllowanceTable
from metaquorum.dataplane.quotas.client_quota_manager import CREDIT_S, KEPT_S, ClientQuotas
from metaquorum.dataplane.quotas.client_state import ClientShare
from metaquorum.dataplane.quotas.muting import ClientName
from metaquorum.dataplane.quotas.quota_status import QuotaStatus
from metaquorum.dataplane.quotas.rate_window import RateWindow
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.quota_lookup import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    EntityPart,
    Sharers,
)
from metaquorum.metadata.records import ClientQuotaRecord
from metaquorum.metadata.replay import replay
from tests.dataplane.quotas.test_quota_credit import Time

PUMP = (EntityPart(CLIENT_ID, "pump"),)
ANONYMOUS = (EntityPart(USER, "ANONYMOUS"),)
OTHER = (EntityPart(CLIENT_ID, "other"),)
Entity = tuple[EntityPart, ...]
Test = Callable[..., Awaitable[None]]


def played(test: Test) -> Callable[..., None]:
    """Run a test in trio: mutes have cancel scopes."""

    @wraps(test)
    def run(**parameters: Any) -> None:
        trio.run(partial(test, **parameters))

    return run


class Story:
    """The quotas of one worker, which change, and their clients. All of it at a set time."""

    def __init__(self, max_clients: int = 1000) -> None:
        self.time = Time()
        self._image = MetadataImage.empty("cluster")
        configs = WorkerLayers({}).worker_configs()
        self.quotas = ClientQuotas(
            self._image, self.time, Random(7), configs, max_clients=max_clients
        )
        self.client = Client(("192.0.2.1", 1), "PLAINTEXT")

    async def set_quota(
        self, value: float | None, entity: Entity = PUMP, key: str = PRODUCER_BYTE_RATE
    ) -> None:
        image, delta = replay(self._image, [ClientQuotaRecord(entity, key, value)])
        self._image = image
        await self.quotas.publish(delta, image)

    def send(self, size_bytes: int, client_id: str = "pump") -> int:
        """Return the throttle time in milliseconds of a produce request."""
        throttle_ms = self.quotas.answering(self.client, client_id, size_bytes)
        self.client.quota.end_mute()
        return throttle_ms


@pytest.mark.parametrize("other_changes", [False, True])
@played
async def test_use_counts_after_a_quota_is_removed_and_set_again(other_changes: bool) -> None:
    story = Story()
    await story.set_quota(50_000.0)
    assert story.send(500_000) == 0
    for value in (None, 50_000.0):
        if other_changes:
            await story.set_quota(1_000.0, OTHER)
            await story.set_quota(None, OTHER)
        await story.set_quota(value)
    assert story.send(100_000) == 2000


@pytest.mark.parametrize("others", [(), (OTHER,), (ANONYMOUS,), (OTHER, ANONYMOUS)])
@played
async def test_use_without_a_quota_counts_when_it_is_set_again(others: tuple[Entity, ...]) -> None:
    story = Story()
    await story.set_quota(50_000.0)
    for entity in others:
        await story.set_quota(1e9, entity)
        await story.set_quota(None, entity)
    await story.set_quota(None)
    assert story.send(600_000) == 0
    story.time.now += 1
    await story.set_quota(50_000.0)
    assert story.send(1) == pytest.approx(2000, abs=2)


@played
async def test_use_without_a_quota_is_that_of_all_who_will_share_it() -> None:
    story = Story()
    await story.set_quota(50_000.0, ANONYMOUS)
    await story.set_quota(None, ANONYMOUS)
    for number in range(6):
        assert story.send(100_000, f"client-{number}") == 0
    await story.set_quota(50_000.0, ANONYMOUS)
    assert story.send(1, "another") == pytest.approx(2000, abs=2)


@played
async def test_fetched_bytes_without_a_quota_count() -> None:
    story, key = Story(), CONSUMER_BYTE_RATE
    await story.set_quota(50_000.0, key=key)
    await story.set_quota(None, key=key)
    story.quotas.fetched(story.client, "pump", 600_000)
    assert story.quotas.may_fetch(story.client, "pump") == 0
    await story.set_quota(50_000.0, key=key)
    assert story.quotas.may_fetch(story.client, "pump") == 2000


@played
async def test_a_quota_is_in_force_with_the_first_request_after_it_was_set() -> None:
    """A busy client without this quota has credit: its requests are counted in groups."""
    story = Story()
    await story.set_quota(1e6, key=REQUEST_PERCENTAGE)
    while not story.client.quota.credit:
        story.time.now += CREDIT_S / 20
        assert story.send(100) == 0
    await story.set_quota(50_000.0)
    assert story.send(600_000) == pytest.approx(2000, abs=10)


@played
async def test_counting_ends_an_hour_after_the_last_quota() -> None:
    story = Story()
    assert not story.quotas.is_on
    await story.set_quota(50_000.0)
    await story.set_quota(50_000.0, key=CONSUMER_BYTE_RATE)
    await story.set_quota(None)
    for _ in range(2):
        story.time.now += KEPT_S - 1
        await story.quotas.forget_unused()
        assert story.quotas.is_on
        assert story.send(600_000) == 0
        await story.set_quota(50_000.0)
        assert story.send(1) > 0
        await story.set_quota(None)
    story.time.now += KEPT_S + 1
    await story.quotas.forget_unused()
    assert not story.quotas.is_on
    assert story.quotas.is_on_for_fetches
    await story.set_quota(50_000.0)
    assert story.send(600_000) == 2000


@played
async def test_clients_with_invented_names_displace_their_own_counts() -> None:
    """Without a quota, too: the victim's use counts when its quota is set."""
    story = Story(max_clients=100)
    victim = Client(("198.51.100.1", 1), "PLAINTEXT")
    await story.set_quota(50_000.0)
    assert story.quotas.answering(victim, "pump", 500_000) == 0
    await story.set_quota(None, PUMP)
    for number in range(1000):
        assert story.send(1_000_000, f"invented-{number}") == 0
    await story.set_quota(50_000.0)
    kind = story.quotas.produce
    assert kind is not None
    assert len(kind) <= 51
    assert story.quotas.answering(victim, "pump", 100_000) == 2000


@played
async def test_small_requests_before_the_first_produce_leave_a_client_its_share() -> None:
    """Requests without records come first: a grant of credit looks at the quota of the producer."""
    story = Story(max_clients=100)
    await story.set_quota(50_000.0, (EntityPart(CLIENT_ID, None),))
    victim = Client(("198.51.100.1", 1), "PLAINTEXT")
    kind = story.quotas.produce
    assert kind is not None

    def ask(client: Client, client_id: str) -> None:
        for _ in range(3):
            story.time.now += CREDIT_S / 20
            assert story.quotas.answering(client, client_id, 0) == 0
        client.quota.credit = client.quota.granted = 0

    ask(victim, "pump")
    assert story.quotas.answering(victim, "pump", 500_000) == 0
    for number in range(200):
        ask(story.client, f"invented-{number}")
        story.send(500_000, f"invented-{number}")
    assert len(kind) <= 51
    assert story.quotas.answering(victim, "pump", 100_000) > 0


@played
async def test_looking_at_use_creates_no_allowance() -> None:
    story, name = Story(), ClientName("User:ANONYMOUS", "pump")
    for key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE):
        await story.set_quota(50_000.0, key=key)
    status = QuotaStatus(story.quotas)
    use = status.use(PRODUCER_BYTE_RATE, *name)
    assert use is not None
    assert (use.quota, use.used) == (50_000.0, 0)
    assert status.delay_after_s(PRODUCER_BYTE_RATE, *name, 600_000) == pytest.approx(2.0)
    assert story.quotas.fetch_bytes(story.client, "pump") == 500_000
    assert story.quotas.may_fetch(story.client, "pump") == 0
    assert [len(kind) for kind in story.quotas.kinds] == [0, 0]


def test_a_new_allowance_costs_the_same_in_a_large_table() -> None:
    """CPU time of this thread: the oldest ones are found without a look at all others."""

    def spent_s(count: int) -> float:
        table, share = AllowanceTable(10 * count), ClientShare("User:u", "192.0.2.1")

        def add(number: int) -> None:
            name = ClientName("User:u", f"{number}")
            allowance = Allowance(name, Sharers(None, name.client_id), share, RateWindow())
            allowance.record(1, 0.0)
            table.add(allowance, 0.0)

        for number in range(count):
            add(number)
        began = thread_time()
        for number in range(count, count + 1000):
            add(number)
        return thread_time() - began

    assert spent_s(85_000) < 5 * spent_s(1000)


@played
async def test_counts_with_a_quota_are_kept_rather_than_those_without() -> None:
    story = Story(max_clients=100)
    await story.set_quota(50_000.0)
    assert story.send(500_000) == 0
    for number in range(1000):
        assert story.send(1_000_000, f"invented-{number}") == 0
    assert story.send(100_000) == 2000


def test_clients_at_many_addresses_leave_room_for_another() -> None:
    table, hosts = AllowanceTable(1000), [f"192.0.2.{number}" for number in range(20)]

    def add(host: str, client_id: str) -> Allowance:
        name = ClientName("User:u", client_id)
        sharers, share = Sharers(None, client_id), ClientShare("User:u", host)
        allowance = Allowance(name, sharers, share, RateWindow())
        allowance.record(1, 0.0)
        table.add(allowance, 0.0)
        return allowance

    first = [add(hosts[0], f"{number}") for number in range(1000)]
    assert len(table) == 500
    for host in hosts[1:]:
        for number in range(100):
            add(host, f"{host}-{number}")
    assert len(table) <= 1000
    assert sum(not one.is_forgotten for one in first) == 500
    newcomer = add("198.51.100.1", "newcomer")
    for host in hosts:
        add(host, f"{host}-more")
    assert not newcomer.is_forgotten
