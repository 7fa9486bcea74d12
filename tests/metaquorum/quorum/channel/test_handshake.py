"""Handshakes without a network: authentication, and attacks by peers without the secret."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.quorum.channel.handshake import (
    MAX_HANDSHAKE_BYTES,
    AcceptorHandshake,
    DialerHandshake,
    Established,
    HandshakeError,
    Hello,
    Refusal,
)
from metaquorum.quorum.channel.identity import ChannelIdentity, StreamKind
from tests.examples import examples
from tests.metaquorum.quorum.channel.nodes import CLUSTER, identity


def hello(
    sender: int = 7, addressee: int = 1, nonce: bytes = b"d" * 32, cluster_id: str = CLUSTER
) -> Hello:
    return Hello(StreamKind.RPC, sender, addressee, 99, 3, nonce, cluster_id)


def dialing(me: ChannelIdentity | None = None, says: Hello | None = None) -> DialerHandshake:
    return DialerHandshake(me or identity(7), says or hello())


def accepting(me: ChannelIdentity | None = None, nonce: bytes = b"a" * 32) -> AcceptorHandshake:
    return AcceptorHandshake(me or identity(1), 55, nonce, lambda _: None)


def offer(side: DialerHandshake | AcceptorHandshake, data: bytes) -> None:
    """Pass bytes like a network, never more than the receiver has room for."""
    while data and side.established is None:
        size = side.room
        side.receive(data[:size])
        data = data[size:]


def shake(
    dialer: DialerHandshake, acceptor: AcceptorHandshake, size: int = 1000
) -> tuple[bytes, bytes]:
    """Run the handshake in pieces of at most `size` bytes; return the bytes that each side sent."""
    there = back = b""
    while dialer.established is None or acceptor.established is None:
        before = len(there) + len(back)
        data = dialer.data_to_send()
        there += data
        for start in range(0, len(data), size):
            offer(acceptor, data[start : start + size])
        data = acceptor.data_to_send()
        back += data
        for start in range(0, len(data), size):
            offer(dialer, data[start : start + size])
        assert len(there) + len(back) > before, "both wait for the other"
    return there, back


@pytest.mark.parametrize("size", [1, 7, 33, 1000])
def test_both_sides_are_believed_and_each_direction_has_its_key(size: int) -> None:
    dialer, acceptor = dialing(), accepting()
    there, back = shake(dialer, acceptor, size)
    ours, theirs = dialer.established, acceptor.established
    assert isinstance(ours, Established)
    assert isinstance(theirs, Established)
    assert (ours.send_key, ours.receive_key) == (theirs.receive_key, theirs.send_key)
    assert ours.send_key != ours.receive_key
    assert (ours.peer.sender, theirs.peer.sender) == (1, 7)
    assert (theirs.peer.incarnation, theirs.peer.attempt) == (99, 3)
    assert max(len(there), len(back)) < MAX_HANDSHAKE_BYTES


def test_what_follows_the_handshake_is_kept() -> None:
    dialer, acceptor = dialing(), accepting()
    acceptor.receive(dialer.data_to_send())
    dialer.receive(acceptor.data_to_send())
    acceptor.receive(dialer.data_to_send())
    dialer.receive(acceptor.data_to_send() + b"a first frame")
    assert dialer.established is not None
    assert dialer.established.trailing == b"a first frame"


def test_a_dialer_that_does_not_wait_for_the_end_is_refused() -> None:
    dialer, acceptor = dialing(), accepting()
    acceptor.receive(dialer.data_to_send())
    dialer.receive(acceptor.data_to_send())
    with pytest.raises(HandshakeError, match="before the end of the handshake"):
        acceptor.receive(dialer.data_to_send() + b"x")
    assert acceptor.established is None


@pytest.mark.parametrize(
    ("mine", "yours", "heard"),
    [
        ({"secret": b"another secret here"}, {}, "another cluster secret"),
        ({"cluster_id": "AnotherCluster"}, {"cluster_id": "AnotherCluster"}, "another cluster"),
        ({}, {"addressee": 2}, "an unexpected node id"),
    ],
)
def test_both_sides_learn_why_they_do_not_go_together(
    mine: dict[str, bytes], yours: dict[str, int], heard: str
) -> None:
    dialer = dialing(identity(7, **mine), hello(**yours))  # type: ignore[arg-type]
    acceptor = accepting()
    with pytest.raises(HandshakeError):
        shake(dialer, acceptor)
    with pytest.raises(HandshakeError, match=heard):
        dialer.receive(acceptor.data_to_send())
    assert dialer.established is acceptor.established is None


def test_an_acceptor_that_is_not_who_was_dialed_is_not_believed() -> None:
    for other in (
        identity(1, cluster_id="AnotherCluster"),
        identity(2),
        identity(1, secret=b"another secret here"),
    ):
        dialer = dialing()
        posing = accepting(other)
        # The acceptor answers any dialer.
        asked = hello(addressee=other.node_id, cluster_id=other.cluster_id)
        dialer.data_to_send()
        posing.receive(asked.encode())
        with pytest.raises(HandshakeError):
            offer(dialer, posing.data_to_send() + b"\x00" + bytes(32))
        assert dialer.established is None


def test_a_stranger_is_given_nothing_to_guess_the_secret_from() -> None:
    acceptor = accepting()
    acceptor.receive(hello().encode())
    said = acceptor.data_to_send()
    # The answer does not depend on the secret.
    other = accepting(identity(1, secret=b"another secret here"))
    other.receive(hello().encode())
    assert said == other.data_to_send()
    with pytest.raises(HandshakeError):
        acceptor.receive(bytes(32))
    assert acceptor.data_to_send() == bytes([Refusal.SECRET])


def test_a_proof_sent_back_to_whom_it_came_from_proves_nothing() -> None:
    # A peer without the secret is dialed, dials back, and relays the messages that it receives.
    dialer = dialing()
    opening = dialer.data_to_send()
    mirrored = AcceptorHandshake(identity(7), 1, b"d" * 32, lambda _: None)
    with pytest.raises(HandshakeError):
        mirrored.receive(opening)  # a hello for another node
    # The dialer's own proof, sent back as the acceptor's.
    acceptor = accepting()
    acceptor.receive(opening)
    dialer.receive(acceptor.data_to_send())
    proof = dialer.data_to_send()
    with pytest.raises(HandshakeError, match="secret"):
        dialer.receive(b"\x00" + proof)


def test_what_was_recorded_of_another_handshake_proves_nothing() -> None:
    dialer, acceptor = dialing(), accepting()
    there, back = shake(dialer, acceptor)
    again = accepting(nonce=b"b" * 32)
    with pytest.raises(HandshakeError, match="secret"):
        offer(again, there)
    anew = dialing(says=hello(nonce=b"e" * 32))
    with pytest.raises(HandshakeError, match="secret"):
        offer(anew, back)


def test_a_proof_is_for_one_pair_one_kind_and_one_cluster() -> None:
    keys = set()
    says = hello()
    for other in (
        says,
        says._replace(sender=8),
        says._replace(kind=StreamKind.PEER),
        says._replace(incarnation=98),
        says._replace(attempt=4),
        says._replace(nonce=b"e" * 32),
    ):
        dialer, acceptor = DialerHandshake(identity(other.sender), other), accepting()
        there, _ = shake(dialer, acceptor)
        keys.add(there[-32:])
    other_cluster = replace(identity(7), cluster_id="B")
    dialer = DialerHandshake(other_cluster, says._replace(cluster_id="B"))
    keys.add(shake(dialer, accepting(identity(1, cluster_id="B")))[0][-32:])
    assert len(keys) == 7


@pytest.mark.parametrize(
    ("data", "who"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"\x00\x00\x00\x1a\x00\x12\x00\x03", "Kafka client"),
        (b"SSH-2.0-OpenSSH", "does not speak"),
        (b"mqchan\n\r", "does not speak"),
    ],
)
def test_strangers_are_named_and_get_no_answer(data: bytes, who: str) -> None:
    acceptor = accepting()
    with pytest.raises(HandshakeError, match=who):
        acceptor.receive(data)
    assert acceptor.data_to_send() == b""


def test_another_version_is_named() -> None:
    data = bytearray(hello().encode())
    data[8] = 2
    dialer, acceptor = dialing(), accepting()
    with pytest.raises(HandshakeError, match="another version"):
        acceptor.receive(bytes(data))
    with pytest.raises(HandshakeError, match="another version"):
        dialer.receive(acceptor.data_to_send())


@examples(300)
@given(data=st.data())
def test_changed_bytes_are_never_believed(data: st.DataObject) -> None:
    there, back = shake(dialing(), accepting())
    side, recorded = data.draw(st.sampled_from([(accepting(), there), (dialing(), back)]))
    changed = bytearray(recorded)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] ^= data.draw(st.integers(1, 255))
    if bytes(changed) == recorded:
        return
    changed += data.draw(st.binary(max_size=300))
    try:
        offer(side, bytes(changed))
    except HandshakeError:
        pass
    assert side.established is None


@examples(300)
@given(pieces=st.lists(st.binary(min_size=1, max_size=120), max_size=12), knows=st.booleans())
def test_no_bytes_crash_a_side_or_make_it_hold_more_than_its_bound(
    pieces: list[bytes], knows: bool
) -> None:
    for side in (accepting(), dialing()):
        opening = hello().encode() if knows else b""
        try:
            for piece in (opening, *pieces):
                offer(side, piece)
                assert 0 < side.room <= MAX_HANDSHAKE_BYTES
        except HandshakeError:
            pass
        assert side.established is None
