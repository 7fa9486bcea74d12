"""Every announced API and version answers odd requests (`odd.py`), and stays up.

Kafka answers each of them, so a closed connection is a fault; so is a traceback in the log, and so
is an answer that its version cannot carry.
"""

import logging
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.messages.init_producer_id import InitProducerIdRequest
from metaquorum.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from metaquorum.wire.protocol.apis import APIS, ApiKey
from tests.dataplane.serving import RawClient, Simulated, batch_of, run_simulated
from tests.examples import examples
from tests.hostile.requests.odd import (
    GROUP,
    OTHER_TOPIC,
    TOPIC,
    TRANSACTIONAL_ID,
    Odd,
    answered_by_nothing,
)

CONFIGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
MEMBER = JoinGroupRequest(
    group_id=GROUP,
    session_timeout_ms=60_000,
    rebalance_timeout_ms=60_000,
    protocol_type="consumer",
    protocols=[JoinGroupRequestProtocol(name="range")],
)


class Faults(logging.Handler):
    """The log records that show an error of the node itself."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or "bug" in record.getMessage():
            self.texts.append(record.getMessage())


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    handler = Faults()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


async def prepared(client: RawClient) -> tuple[str, int]:
    """Begin a group and a transaction; return the id of the member, and of the producer."""
    for kind, key in enumerate((GROUP, TRANSACTIONAL_ID)):
        asked = FindCoordinatorRequest(coordinator_keys=[key], key_type=kind)
        await client.call(ApiKey.FIND_COORDINATOR, asked)
    while not (joined := await client.call(ApiKey.JOIN_GROUP, MEMBER, 3)).member_id:
        pass
    begin = InitProducerIdRequest(transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=60_000)
    while (begun := await client.call(ApiKey.INIT_PRODUCER_ID, begin, 2)).error_code:
        pass
    return joined.member_id, begun.producer_id


async def ask_all(node: Simulated, draw: Random, faults: Faults) -> None:
    client = await node.connect()
    member_id, producer_id = await prepared(client)
    apis = list(APIS.values())
    draw.shuffle(apis)
    for api in apis:
        # Requests before may have deleted them.
        rows = [await client.create(name, 2) for name in (TOPIC, OTHER_TOPIC)]
        odd = Odd(draw, [row.topic_id for row in rows], member_id, producer_id)
        for version in range(api.min_version, api.max_version + 1):
            asked = odd.request(api, version)
            if answered_by_nothing(asked):
                continue
            try:
                await client.call(api.key, asked, version)
            except (EOFError, OSError) as error:
                raise AssertionError(f"{api.name} v{version}: {error!r} for {asked!r}") from error
            assert not faults.texts, (api.name, version, asked)
    await client.create("afterwards")
    await client.produce("afterwards", batch_of(b"v"))
    assert await client.values("afterwards") == [b"v"]


@given(seed=st.integers(0, 1 << 32))
@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_odd_requests_of_all_apis_are_answered(faults: Faults, seed: int) -> None:
    faults.texts.clear()
    run_simulated(lambda node: ask_all(node, Random(seed), faults), dotted=CONFIGS)
    assert not faults.texts
