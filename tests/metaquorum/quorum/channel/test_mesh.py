"""Meshes of voters on this machine: one stream per pair, in order, without gaps."""

from collections.abc import Callable

import pytest
import trio
import trio.testing

from metaquorum.quorum.channel import (
    Cause,
    ChannelListener,
    Endpoint,
    HandshakeError,
    PeerMesh,
    Stream,
    StreamKind,
)
from metaquorum.quorum.channel.endpoint import shake_hands
from metaquorum.quorum.channel.frames import MAX_MESSAGE_BYTES
from metaquorum.quorum.channel.handshake import DialerHandshake, Hello
from metaquorum.quorum.channel.stream import MAX_QUEUED_BYTES
from metaquorum.quorum.raft import peers
from metaquorum.quorum.raft.peers import PeerProtocolError
from tests.metaquorum.quorum.channel.nodes import (
    CLUSTER,
    HOST,
    Voter,
    endpoint,
    identity,
    in_trio,
    meshes,
    shared_runtime,
)
from tests.nodes import free_port


def ignore(_: bytes) -> None:
    pass


async def second_voter(
    nursery: trio.Nursery, voter: Voter | None = None
) -> tuple[Endpoint, PeerMesh, Voter, tuple[str, int]]:
    """Run voter 2 of 1, 2, 3, which a test dials as voter 1."""
    end, voter = endpoint(2), voter or Voter()
    mesh = PeerMesh(end, {1: (HOST, 1), 2: (HOST, 2), 3: (HOST, 3)})
    mesh.attach(voter)
    listener = ChannelListener(end, mesh)
    await listener.listen(HOST, 0)
    nursery.start_soon(listener.run)
    return end, mesh, voter, listener.address


def test_a_voter_s_largest_messages_and_queue_fit() -> None:
    assert peers.MAX_MESSAGE_BYTES <= MAX_MESSAGE_BYTES
    assert peers.MAX_QUEUE_BYTES <= MAX_QUEUED_BYTES


@in_trio
async def test_every_pair_has_one_stream_and_messages_keep_their_order() -> None:
    async with trio.open_nursery() as nursery:
        found = await meshes(nursery, (1, 2, 3))
        for mesh, voter in found.values():
            await voter.wait_until(lambda voter=voter: len(voter.connected_ids) == 2)
            assert mesh.linked() == voter.connected_ids
        sent = [b"%d" % number * (1 + number % 300) for number in range(500)]
        for node_id, (mesh, _) in found.items():
            for message in sent:
                for other in found.keys() - {node_id}:
                    assert mesh.send(other, message)
        for _, voter in found.values():
            await voter.wait_until(
                lambda voter=voter: [len(got) for got in voter.messages.values()] == [500, 500]
            )
            assert all(got == sent for got in voter.messages.values())
            assert len(voter.events) == 2
        nursery.cancel_scope.cancel()


@in_trio
async def test_nothing_can_be_sent_to_who_is_not_connected() -> None:
    async with trio.open_nursery() as nursery:
        _, mesh, voter, _ = await second_voter(nursery)
        assert not mesh.send(3, b"m")
        assert not mesh.send(77, b"m")
        assert voter.events == []
        nursery.cancel_scope.cancel()


@in_trio
async def test_large_messages_arrive() -> None:
    async with trio.open_nursery() as nursery:
        found = await meshes(nursery, (1, 2))
        (mesh, sender), (_, receiver) = found[1], found[2]
        await sender.wait_until(lambda: 2 in sender.connected_ids)
        large = [bytes([number]) * MAX_MESSAGE_BYTES for number in range(2)]
        for message in (*large, b"small"):
            assert mesh.send(2, message)
        await receiver.wait_until(lambda: len(receiver.messages.get(1, [])) == 3)
        assert receiver.messages[1] == [*large, b"small"]
        nursery.cancel_scope.cancel()


@in_trio
async def test_a_full_queue_closes_the_connection_which_is_then_made_anew() -> None:
    """The other voter is connected, but does not read."""
    listener = await shared_runtime().network.listen(HOST, 0)
    accepted: list[Stream] = []

    async def never_read(end: Endpoint) -> None:
        while True:
            accepted.append(await end.accept(await listener.accept(), lambda _: None))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(never_read, endpoint(2))
        end, voter = endpoint(1), Voter()
        mesh = PeerMesh(end, {1: (HOST, 1), 2: listener.address})
        mesh.attach(voter)
        nursery.start_soon(mesh.run)
        await voter.wait_until(lambda: 2 in voter.connected_ids)
        message, sent = bytes(1 << 20), 0
        while mesh.send(2, message):
            sent += 1
            await trio.testing.wait_all_tasks_blocked()
        assert sent * len(message) >= MAX_QUEUED_BYTES
        assert voter.events == [("connected", 2)]  # `send` does not call back
        assert not mesh.send(2, b"small")
        await voter.wait_until(lambda: len(voter.events) == 3)
        assert voter.events[1:] == [("disconnected", 2), ("connected", 2)]
        assert mesh.send(2, message)
        nursery.cancel_scope.cancel()
    for stream in accepted:
        stream.close()
    listener.close()


@in_trio
async def test_a_new_process_of_a_voter_replaces_its_half_open_connection() -> None:
    async with trio.open_nursery() as nursery:
        _, mesh, voter, address = await second_voter(nursery)
        before = await endpoint(1).dial(StreamKind.PEER, 2, *address)
        await voter.wait_until(lambda: 1 in voter.connected_ids)
        assert mesh.send(1, b"to the dead one")
        # The old process sends nothing more, since it lost power.
        after = await endpoint(1).dial(StreamKind.PEER, 2, *address)
        await voter.wait_until(lambda: len(voter.events) == 3)
        assert voter.events[1:] == [("disconnected", 1), ("connected", 1)]
        got: list[bytes] = []
        arrived = trio.Event()

        def receive(message: bytes) -> None:
            got.append(message)
            arrived.set()

        nursery.start_soon(after.run, receive)
        assert mesh.send(1, b"to the living one")
        await arrived.wait()
        assert got == [b"to the living one"]
        assert (await before.run(ignore)).cause is Cause.PEER_CLOSED
        assert after.end is None
        nursery.cancel_scope.cancel()


@in_trio
async def test_what_a_process_dialed_before_does_not_replace_what_it_dialed_later() -> None:
    async with trio.open_nursery() as nursery:
        _, mesh, voter, address = await second_voter(nursery)
        streams = []
        for attempt in (5, 4):
            connection = await shared_runtime().network.connect(*address)
            hello = Hello(StreamKind.PEER, 1, 2, 1234, attempt, bytes(32), CLUSTER)
            established = await shake_hands(connection, DialerHandshake(identity(1), hello))
            me = endpoint(1)
            streams.append(Stream(connection, me.runtime.clock, established, me.timings))
            await voter.wait_until(lambda: 1 in voter.connected_ids)
        assert (await streams[1].run(ignore)).cause is Cause.PEER_CLOSED
        assert voter.events == [("connected", 1)]
        assert mesh.linked() == {1}
        streams[0].close()
        nursery.cancel_scope.cancel()


class Watch:
    """Records the notifications about voters."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def peer_came(self, voter_id: int) -> None:
        self.events.append(("came", voter_id))

    def peer_closed(self, voter_id: int) -> None:
        self.events.append(("closed", voter_id))


@in_trio
async def test_a_voter_that_restarts_is_connected_again() -> None:
    addresses = {1: (HOST, 1), 2: (HOST, free_port())}
    mesh, voter, watch = PeerMesh(endpoint(1), addresses), Voter(), Watch()
    mesh.attach(voter)
    mesh.watch(watch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mesh.run)
        for run in range(3):
            async with trio.open_nursery() as other:
                second, end = Voter(), endpoint(2)
                second_mesh = PeerMesh(end, addresses)
                second_mesh.attach(second)
                listening = ChannelListener(end, second_mesh)
                await listening.listen(*addresses[2])
                other.start_soon(listening.run)
                await voter.wait_until(lambda: 2 in voter.connected_ids)
                assert mesh.send(2, b"run %d" % run)
                await second.wait_until(lambda second=second: bool(second.messages))
                assert second.messages[1] == [b"run %d" % run]
                other.cancel_scope.cancel()
            await voter.wait_until(lambda: 2 not in voter.connected_ids)
        nursery.cancel_scope.cancel()
    assert voter.events == [("connected", 2), ("disconnected", 2)] * 3
    assert watch.events == [("came", 2), ("closed", 2)] * 3


@in_trio
async def test_what_this_side_closed_says_nothing_of_the_other() -> None:
    async with trio.open_nursery() as nursery:
        voter, watch = Strict(lambda: PeerProtocolError("term -1")), Watch()
        _, mesh, _, address = await second_voter(nursery, voter)
        mesh.watch(watch)
        stream = await endpoint(1).dial(StreamKind.PEER, 2, *address)
        stream.send(b"m")
        await stream.run(ignore)
        assert voter.events == [("connected", 1), ("disconnected", 1)]
        assert watch.events == [("came", 1)]
        nursery.cancel_scope.cancel()


class Strict(Voter):
    """A voter that rejects some messages."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        super().__init__()
        self.error = error

    def received(self, voter_id: int, message: bytes) -> None:
        raise self.error()


@in_trio
async def test_a_message_that_no_voter_sends_closes_the_connection() -> None:
    async with trio.open_nursery() as nursery:
        voter = Strict(lambda: PeerProtocolError("term -1"))
        *_, address = await second_voter(nursery, voter)
        stream = await endpoint(1).dial(StreamKind.PEER, 2, *address)
        stream.send(b"m")
        assert (await stream.run(ignore)).cause is Cause.PEER_CLOSED
        assert voter.events == [("connected", 1), ("disconnected", 1)]
        nursery.cancel_scope.cancel()


@in_trio
async def test_a_voter_s_own_failure_ends_its_listener() -> None:
    async def fail() -> None:
        async with trio.open_nursery() as nursery:
            voter = Strict(lambda: ZeroDivisionError())
            *_, address = await second_voter(nursery, voter)
            stream = await endpoint(1).dial(StreamKind.PEER, 2, *address)
            stream.send(b"m")
            await stream.run(ignore)

    with pytest.raises(ExceptionGroup) as caught:
        await fail()
    assert caught.value.subgroup(ZeroDivisionError) is not None


@pytest.mark.parametrize("node_id", [3, 4, 2])
@in_trio
async def test_who_is_no_voter_with_a_lower_id_is_refused(node_id: int) -> None:
    async with trio.open_nursery() as nursery:
        _, _, voter, address = await second_voter(nursery)
        with pytest.raises(HandshakeError, match="does not accept this kind"):
            await endpoint(node_id).dial(StreamKind.PEER, 2, *address)
        assert voter.events == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("garbage", [b"\x00\x00\x00\x30" + bytes(48), b"\x7f" * 100, b"\xff" * 9])
@in_trio
async def test_bytes_put_into_a_stream_by_others_end_it_and_are_not_delivered(
    garbage: bytes,
) -> None:
    async with trio.open_nursery() as nursery:
        _, _, voter, address = await second_voter(nursery)
        connection = await shared_runtime().network.connect(*address)
        hello = Hello(StreamKind.PEER, 1, 2, 1, 1, bytes(32), CLUSTER)
        await shake_hands(connection, DialerHandshake(identity(1), hello))
        await voter.wait_until(lambda: 1 in voter.connected_ids)
        await connection.send(garbage)
        await voter.wait_until(lambda: 1 not in voter.connected_ids)
        assert voter.messages == {}
        connection.close()
        nursery.cancel_scope.cancel()
