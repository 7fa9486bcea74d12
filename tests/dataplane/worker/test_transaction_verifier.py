"""Questions to coordinators on other workers: together in one request, never more than one each."""

import time
from typing import Any

import pytest
import trio
import trio.testing

from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.worker.transaction_verifier import (
    MAX_PLACES,
    MAX_WAITING,
    NO_WORKER,
    Codes,
    TransactionVerifier,
)
from metaquorum.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.dataplane.coordinators.transaction.answers import added
from tests.dataplane.serving import in_trio

OTHER = 2
CLIENT, ANOTHER = (Client((f"10.0.0.{host}", 50_000), "PLAINTEXT") for host in (1, 2))
FINE = {("t", 0): ErrorCode.NONE}


class Others:
    """The other workers: each request waits until the test lets it be answered."""

    def __init__(self) -> None:
        self.requests: list[AddPartitionsToTxnRequest] = []
        self.may_answer = trio.Event()
        self.fails = False

    async def ask(self, worker_id: int, request: Any, *, timeout_s: float) -> Any:
        assert worker_id == OTHER
        self.requests.append(request)
        await self.may_answer.wait()
        if self.fails:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION)
        return added(request)


async def nobody(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    raise AssertionError("this worker coordinates nothing")


class Asking:
    """A verifier, and what it answered to each transactional id."""

    def __init__(self) -> None:
        self.others = Others()
        self.verifier = TransactionVerifier(1, self.others, lambda _: OTHER, nobody, time.monotonic)
        self.answers: dict[str, Codes] = {}

    async def ask(self, transactional_id: str, count: int = 1, client: Client = CLIENT) -> None:
        places = [("t", index) for index in range(count)]
        answer = await self.verifier.verify(transactional_id, 7, 0, places, client, adds=False)
        self.answers[transactional_id] = answer

    def asked(self) -> list[list[str]]:
        return [
            [one.transactional_id for one in request.transactions]
            for request in self.others.requests
        ]


@in_trio
async def test_what_is_asked_during_a_request_goes_into_the_next_one() -> None:
    asking = Asking()
    async with trio.open_nursery() as nursery:
        for name in ("a", "b", "c", "d"):
            nursery.start_soon(asking.ask, name)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(asking.ask, "b", 2)  # an answer names a transactional id once
        await trio.testing.wait_all_tasks_blocked()
        assert asking.asked() == [["a"]]
        asking.others.may_answer.set()
    assert asking.asked() == [["a"], ["b", "c", "d"], ["b"]]
    assert asking.answers["a"] == asking.answers["c"] == asking.answers["d"] == FINE


@in_trio
async def test_those_behind_a_coordinator_that_fails_do_not_wait_again() -> None:
    asking = Asking()
    asking.others.fails = True
    async with trio.open_nursery() as nursery:
        for name in ("a", "b"):
            nursery.start_soon(asking.ask, name)
            await trio.testing.wait_all_tasks_blocked()
        asking.others.may_answer.set()
    failed = {("t", 0): ErrorCode.NETWORK_EXCEPTION}
    assert asking.answers == {"a": failed, "b": failed}
    assert asking.asked() == [["a"]]
    assert (asking.verifier.failed_count, asking.verifier.times.count) == (2, 2)


@in_trio
async def test_a_client_that_leaves_while_it_asks_for_others_does_not_take_them_along() -> None:
    asking = Asking()
    async with trio.open_nursery() as nursery:
        leaving = trio.CancelScope()

        async def leaves() -> None:
            with leaving:
                await asking.ask("a")

        nursery.start_soon(leaves)
        await trio.testing.wait_all_tasks_blocked()
        for name in ("b", "c"):
            nursery.start_soon(asking.ask, name)
            await trio.testing.wait_all_tasks_blocked()
        leaving.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert asking.asked() == [["a"], ["b", "c"]]
        asking.others.may_answer.set()
    assert asking.answers == {"b": FINE, "c": FINE}


@in_trio
async def test_a_request_has_a_limited_number_of_partitions() -> None:
    asking = Asking()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking.ask, "a")
        await trio.testing.wait_all_tasks_blocked()
        for name in ("b", "c"):
            nursery.start_soon(asking.ask, name, MAX_PLACES)
            await trio.testing.wait_all_tasks_blocked()
        asking.others.may_answer.set()
    assert asking.asked() == [["a"], ["b"], ["c"]]


@in_trio
async def test_a_client_that_asks_too_much_is_refused_at_once_and_no_other() -> None:
    asking = Asking()
    async with trio.open_nursery() as nursery:
        for number in range(MAX_WAITING // MAX_PLACES):
            nursery.start_soon(asking.ask, str(number), MAX_PLACES)
        await trio.testing.wait_all_tasks_blocked()
        await asking.ask("more")
        assert asking.answers == {"more": {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}}
        nursery.start_soon(asking.ask, "another", 1, ANOTHER)
        await trio.testing.wait_all_tasks_blocked()
        assert "another" not in asking.answers
        asking.others.may_answer.set()
    assert asking.answers["another"] == FINE
    await asking.ask("more")
    assert asking.answers["more"] == FINE


@pytest.mark.parametrize(
    ("answered", "reported"),
    [
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.NONE, ErrorCode.NETWORK_EXCEPTION),  # the transaction is missing
    ],
)
def test_an_error_of_the_whole_answer_is_that_of_all(
    answered: ErrorCode, reported: ErrorCode
) -> None:
    async def add_partitions(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse(error_code=answered)

    @in_trio
    async def scenario() -> None:
        verifier = TransactionVerifier(1, Others(), lambda _: 1, add_partitions, time.monotonic)
        answer = await verifier.verify("a", 7, 0, [("t", 0), ("u", 1)], CLIENT, adds=True)
        assert answer == {("t", 0): reported, ("u", 1): reported}

    scenario()


@in_trio
async def test_without_a_coordinator_nobody_is_asked() -> None:
    verifier = TransactionVerifier(1, Others(), lambda _: NO_WORKER, nobody, time.monotonic)
    answer = await verifier.verify("a", 7, 0, [("t", 0)], CLIENT, adds=True)
    assert answer == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
