"""Calls between two nodes on this machine: answers, errors, deadlines, ends."""

import logging
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from metaquorum.quorum.channel import (
    Caller,
    CallLostError,
    CallNotSentError,
    Cause,
    End,
    RemoteError,
    RpcClient,
    StreamKind,
)
from metaquorum.quorum.channel.calls import (
    MAX_PAYLOAD_BYTES,
    Kind,
    decode_reply,
    encode_answer,
    encode_call,
    encode_cancel,
)
from metaquorum.quorum.channel.rpc_server import MAX_CALL_BYTES_IN_FLIGHT, MAX_CALLS_IN_FLIGHT
from metaquorum.runtime.interfaces import Connection, Listener
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.metaquorum.quorum.channel.nodes import (
    HOST,
    Changes,
    endpoint,
    in_trio,
    rpc_pair,
    rpc_server,
    shared_runtime,
)
from tests.nodes import PATIENCE_S

TIMEOUT_S = PATIENCE_S


class Desk(Changes):
    """A handler that answers "echo" immediately and other methods when it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.go = trio.Event()
        self.cancelled = 0
        self.under_way = 0
        self.callers: set[Caller] = set()
        self.ends: list[End] = []

    async def answer(self, caller: Caller, method: str, payload: bytes) -> bytes:
        self.callers.add(caller)
        if method == "echo":
            return payload
        self.under_way += 1
        self.note()
        try:
            await self.go.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.under_way -= 1
            self.note()
        return b"done"

    def ended(self, _: Caller, end: End) -> None:
        self.ends.append(end)
        self.note()


@in_trio
async def test_calls_are_answered_whatever_their_size() -> None:
    desk = Desk()
    async with rpc_pair(desk.answer) as client:
        for size in (0, 1, 100, 70_000, 1 << 20, MAX_PAYLOAD_BYTES):
            payload = bytes(size)
            assert await client.call("echo", payload, TIMEOUT_S) == payload
        (caller,) = desk.callers
        assert caller.node_id == 7
        assert caller.address[0] == "127.0.0.1"


@in_trio
async def test_many_calls_are_under_way_at_once_and_answers_find_their_calls() -> None:
    async def answer(caller: Caller, method: str, payload: bytes) -> bytes:
        await trio.sleep(0.0001 * (payload[0] % 7))
        return method.encode() + payload

    async with rpc_pair(answer) as client, trio.open_nursery() as nursery:

        async def ask(number: int) -> None:
            payload = bytes([number % 256]) * number
            answer = await client.call(f"m{number}", payload, TIMEOUT_S)
            assert answer == f"m{number}".encode() + payload

        for number in range(1, 300):
            nursery.start_soon(ask, number)


@in_trio
async def test_a_slow_call_holds_up_no_other() -> None:
    desk = Desk()
    async with rpc_pair(desk.answer) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call, "wait", b"", TIMEOUT_S)
        await desk.wait_until(lambda: desk.under_way == 1)
        assert await client.call("echo", b"quick", TIMEOUT_S) == b"quick"
        desk.go.set()


@in_trio
async def test_an_error_of_the_handler_reaches_the_caller() -> None:
    async def refuse(caller: Caller, method: str, payload: bytes) -> bytes:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "node 3 is, süß")

    async with rpc_pair(refuse) as client:
        with pytest.raises(RemoteError) as caught:
            await client.call("register", b"", TIMEOUT_S)
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
        assert caught.value.message == "node 3 is, süß"


@in_trio
async def test_a_bug_in_a_handler_is_logged_and_ends_that_connection_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def stumble(caller: Caller, method: str, payload: bytes) -> bytes:
        raise ZeroDivisionError

    async with rpc_pair(stumble) as client:
        with pytest.raises(CallLostError, match="was not answered"):
            await client.call("register", b"", TIMEOUT_S)
        await client.closed.wait()
    (record,) = (record for record in caplog.records if record.levelno >= logging.ERROR)
    assert "bug in register" in record.message
    assert record.exc_info


@in_trio
async def test_a_call_that_is_not_answered_in_time_is_lost_and_cancelled_there() -> None:
    desk = Desk()
    async with rpc_pair(desk.answer) as client:
        with pytest.raises(CallLostError, match=r"within 0\.05 s"):
            await client.call("wait", b"", 0.05)
        await desk.wait_until(lambda: desk.cancelled == 1)
        assert await client.call("echo", b"and on", TIMEOUT_S) == b"and on"


@in_trio
async def test_an_earlier_deadline_is_met_although_a_later_one_was_first() -> None:
    desk = Desk()
    async with rpc_pair(desk.answer) as client, trio.open_nursery() as nursery:

        async def expire(timeout_s: float) -> None:
            with pytest.raises(CallLostError):
                await client.call("wait", b"", timeout_s)

        nursery.start_soon(client.call, "wait", b"", 60.0)
        await desk.wait_until(lambda: desk.under_way == 1)
        for timeout_s in (0.3, 0.1, 0.2):
            nursery.start_soon(expire, timeout_s)
        await desk.wait_until(lambda: desk.cancelled == 3)
        desk.go.set()


@in_trio
async def test_who_gives_up_a_call_cancels_it_there() -> None:
    desk = Desk()
    async with rpc_pair(desk.answer) as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call, "wait", b"", TIMEOUT_S)
                await desk.wait_until(lambda: desk.under_way == 1)
                scope.cancel()
        await desk.wait_until(lambda: desk.cancelled == 1)


@in_trio
async def test_calls_under_way_are_lost_with_the_connection() -> None:
    desk = Desk()
    async with rpc_pair(desk.answer, ended=desk.ended) as client:
        async with trio.open_nursery() as nursery:

            async def lose() -> None:
                with pytest.raises(CallLostError, match="closed by this node"):
                    await client.call("wait", b"", TIMEOUT_S)

            nursery.start_soon(lose)
            await desk.wait_until(lambda: desk.under_way == 1)
            client.close()
        await client.closed.wait()
        with pytest.raises(CallNotSentError, match="no connection to node 1"):
            await client.call("echo", b"", TIMEOUT_S)
        await desk.wait_until(lambda: desk.cancelled == 1)
        (caller,) = desk.callers
        await caller.closed.wait()
        await desk.wait_until(lambda: bool(desk.ends))
        assert [(one.cause, one.is_evidence) for one in desk.ends] == [(Cause.PEER_CLOSED, True)]


@in_trio
async def test_a_call_that_never_left_is_surely_not_executed() -> None:
    ends: dict[str, str] = {}

    async def ask(client: RpcClient, name: str, size: int) -> None:
        try:
            await client.call(name, bytes(size), TIMEOUT_S)
        except (CallLostError, CallNotSentError) as error:
            ends[name] = type(error).__name__

    async def never_read(connection: Connection) -> None:
        stream = await endpoint(1).accept(connection, lambda _: None)
        try:
            await trio.sleep_forever()
        finally:
            stream.close()

    listener = await shared_runtime().network.listen(HOST, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: _accept_one(listener, never_read))
        client = await RpcClient.connect(endpoint(7), 1, *listener.address)
        async with trio.open_nursery() as calls:
            calls.start_soon(client.run)
            calls.start_soon(ask, client, "large", MAX_PAYLOAD_BYTES)
            await trio.testing.wait_all_tasks_blocked()
            calls.start_soon(ask, client, "behind", 10)
            await trio.testing.wait_all_tasks_blocked()
            client.close()
        nursery.cancel_scope.cancel()
    listener.close()
    assert ends == {"large": "CallLostError", "behind": "CallNotSentError"}


# The server has the same bounds, and refuses with another text what the client lets through.
BY_CLIENT = "^too many calls to node"


@in_trio
async def test_calls_beyond_the_bound_are_surely_not_executed() -> None:
    desk = Desk()
    async with rpc_pair(desk.answer) as client, trio.open_nursery() as nursery:
        for _ in range(MAX_CALLS_IN_FLIGHT):
            nursery.start_soon(client.call, "wait", b"", TIMEOUT_S)
        await desk.wait_until(lambda: desk.under_way == MAX_CALLS_IN_FLIGHT)
        with pytest.raises(CallNotSentError, match=BY_CLIENT):
            await client.call("echo", b"", TIMEOUT_S)
        desk.go.set()


@in_trio
async def test_calls_beyond_the_bound_in_bytes_are_surely_not_executed() -> None:
    desk = Desk()
    fitting = MAX_CALL_BYTES_IN_FLIGHT // MAX_PAYLOAD_BYTES
    async with rpc_pair(desk.answer) as client, trio.open_nursery() as nursery:
        for number in range(fitting):
            nursery.start_soon(client.call, "wait", bytes(MAX_PAYLOAD_BYTES), TIMEOUT_S)
            await desk.wait_until(lambda: desk.under_way == number + 1)  # noqa: B023
        with pytest.raises(CallNotSentError, match=BY_CLIENT):
            await client.call("wait", bytes(MAX_PAYLOAD_BYTES), TIMEOUT_S)
        desk.go.set()


class Replies(Changes):
    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[Kind] = []

    def receive(self, message: bytes) -> None:
        self.kinds.append(decode_reply(message).kind)
        self.note()


@in_trio
async def test_a_server_refuses_calls_beyond_its_bound_and_goes_on() -> None:
    desk, replies = Desk(), Replies()
    async with rpc_server(desk.answer) as address, trio.open_nursery() as nursery:
        stream = await endpoint(7).dial(StreamKind.RPC, 1, *address)
        nursery.start_soon(stream.run, replies.receive)
        for number in range(MAX_CALLS_IN_FLIGHT + 10):
            assert stream.send(encode_call(number, "wait", b""))
        await replies.wait_until(lambda: len(replies.kinds) == 10)
        assert set(replies.kinds) == {Kind.REFUSED}
        assert desk.under_way == MAX_CALLS_IN_FLIGHT
        stream.send(encode_cancel(0))
        await desk.wait_until(lambda: desk.cancelled == 1)
        stream.send(encode_call(5000, "echo", b""))
        await replies.wait_until(lambda: replies.kinds[-1] is Kind.ANSWER)
        stream.close()


@in_trio
async def test_a_server_refuses_calls_beyond_its_bound_in_bytes_and_goes_on() -> None:
    desk, replies = Desk(), Replies()
    fitting = MAX_CALL_BYTES_IN_FLIGHT // MAX_PAYLOAD_BYTES
    async with rpc_server(desk.answer) as address, trio.open_nursery() as nursery:
        stream = await endpoint(7).dial(StreamKind.RPC, 1, *address)
        nursery.start_soon(stream.run, replies.receive)
        for number in range(fitting):
            assert stream.send(encode_call(number, "wait", bytes(MAX_PAYLOAD_BYTES)))
            await desk.wait_until(lambda: desk.under_way == number + 1)  # noqa: B023
        stream.send(encode_call(fitting, "echo", bytes(MAX_PAYLOAD_BYTES)))
        await replies.wait_until(lambda: replies.kinds == [Kind.REFUSED])
        stream.send(encode_cancel(0))
        await desk.wait_until(lambda: desk.cancelled == 1)
        stream.send(encode_call(5000, "echo", bytes(MAX_PAYLOAD_BYTES)))
        await replies.wait_until(lambda: replies.kinds[-1] is Kind.ANSWER)
        stream.close()


@pytest.mark.parametrize(
    "messages",
    [[b"nonsense"], [encode_answer(1, b"")], [encode_call(1, "wait", b"")] * 2],
    ids=["nonsense", "an answer", "one id twice"],
)
@in_trio
async def test_who_sends_what_is_no_call_is_closed(messages: list[bytes]) -> None:
    desk = Desk()
    async with rpc_server(desk.answer, ended=desk.ended) as address:
        stream = await endpoint(7).dial(StreamKind.RPC, 1, *address)
        for message in messages:
            stream.send(message)
        end = await stream.run(lambda _: None)
        assert end.cause is Cause.PEER_CLOSED
        await desk.wait_until(lambda: bool(desk.ends))
        assert [one.cause for one in desk.ends] == [Cause.NONSENSE]


@in_trio
async def test_an_answer_to_nothing_ends_the_client() -> None:
    async def babble(connection: Connection) -> None:
        stream = await endpoint(1).accept(connection, lambda _: None)
        stream.send(encode_answer(77, b""))
        await stream.run(lambda _: None)

    listener = await shared_runtime().network.listen(HOST, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: _accept_one(listener, babble))
        client = await RpcClient.connect(endpoint(7), 1, *listener.address)
        end = await client.run()
        assert end.cause is Cause.NONSENSE
        assert "no call has the id 77" in end.detail
    listener.close()


async def _accept_one(listener: Listener, serve: Callable[[Connection], Awaitable[None]]) -> None:
    await serve(await listener.accept())
