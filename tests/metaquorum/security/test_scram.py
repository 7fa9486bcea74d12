"""SCRAM against the examples of the RFCs, and client against server."""

import base64
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.security.scram import (
    DEFAULT_ITERATIONS,
    MAX_CLIENT_ITERATIONS,
    MIN_ITERATIONS,
    ScramChallenge,
    ScramClient,
    ScramCredential,
    ScramError,
    ScramMechanism,
    ScramServer,
    credential,
    salted_password,
)

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
DECOY_KEY = b"a secret of the server's"
SALT = b"salt of twelve"


def made(mechanism: ScramMechanism, password: str, salt: bytes = SALT) -> ScramCredential:
    salted = salted_password(mechanism, password, salt, MIN_ITERATIONS)
    return credential(mechanism, salted, salt, MIN_ITERATIONS)


def server_of(
    users: dict[str, ScramCredential],
    mechanism: ScramMechanism = SHA_256,
    nonce: str = "server",
) -> ScramServer:
    return ScramServer(mechanism, users.get, nonce, DECOY_KEY)


ALICE = {"alice": made(SHA_256, "secret")}


def test_the_example_of_rfc_7677_byte_for_byte() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    users = {"user": made(SHA_256, "pencil", salt)}
    client = ScramClient(SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    server = server_of(users, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = client.first()
    assert first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    second = server.first(first)
    assert second == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    third = client.final(second)
    assert third == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    last = server.final(third)
    assert last == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.finish(last)


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512], ids=lambda m: m.sasl_name)
@pytest.mark.parametrize("name", ["alice", "a,b=c", "=2C", "Jürgen", "n=x,r=y"])
def test_both_sides_agree_whatever_the_user_is_called(mechanism: ScramMechanism, name: str) -> None:
    client = ScramClient(mechanism, name, "secret, = ü", "client")
    server = server_of({name: made(mechanism, "secret, = ü")}, mechanism)
    client.finish(server.final(client.final(server.first(client.first()))))
    assert server.username == name


def test_a_wrong_password_shows_in_the_last_message_alone() -> None:
    client, server = ScramClient(SHA_256, "alice", "wrong", "c"), server_of(ALICE)
    with pytest.raises(ScramError, match="the proof is wrong"):
        server.final(client.final(server.first(client.first())))


def test_nobody_learns_from_the_answers_who_is_there() -> None:
    def first_answer(name: str) -> bytes:
        return server_of(ALICE).first(ScramClient(SHA_256, name, "x", "c").first())

    assert first_answer("bob") == first_answer("bob"), "the salt of an unknown user must not change"
    assert first_answer("bob") != first_answer("carol")
    assert len(first_answer("bob").split(b"s=")[1]) > 30
    complaints = set()
    for name in ("alice", "bob"):
        client, server = ScramClient(SHA_256, name, "wrong", "c"), server_of(ALICE)
        with pytest.raises(ScramError) as caught:
            server.final(client.final(server.first(client.first())))
        complaints.add(str(caught.value))
    assert len(complaints) == 1


def digests_of(action: Callable[[], object]) -> Counter[str]:
    """Return how often `action` called each C function that hashes or compares hashes."""
    counts: Counter[str] = Counter()

    def note(frame: object, event: str, called: object) -> None:
        if event == "c_call" and getattr(called, "__module__", "") == "_hashlib":
            counts[getattr(called, "__name__")] += 1  # noqa: B009

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
    return counts


def test_the_same_digests_are_made_for_users_who_exist_who_do_not_and_who_did() -> None:
    """The test counts the expensive operations instead of measuring time."""
    users = {**ALICE, "carol": ScramChallenge(SALT, DEFAULT_ITERATIONS)}

    def digests(name: str) -> list[Counter[str]]:
        client = ScramClient(SHA_256, name, "wrong", "c")
        server = ScramServer(SHA_256, users.get, "server", DECOY_KEY)
        asked, answers = client.first(), []
        first = digests_of(lambda: answers.append(server.first(asked)))
        proof = client.final(answers[0])

        def final() -> None:
            with suppress(ScramError):
                server.final(proof)

        return [first, digests_of(final)]

    first, final = digests("alice")
    assert first.total() == 1, "a decoy's salt is derived for every user"
    assert final.total() == 3
    assert [first, final] == digests("bobby") == digests("carol")


def test_a_deleted_user_is_challenged_as_before_and_its_password_is_worth_nothing() -> None:
    server = ScramServer(
        SHA_256, {"alice": ScramChallenge(SALT, MIN_ITERATIONS)}.get, "server", DECOY_KEY
    )
    client = ScramClient(SHA_256, "alice", "secret", "c")
    challenge = server.first(client.first())
    assert challenge == server_of(ALICE).first(ScramClient(SHA_256, "alice", "secret", "c").first())
    with pytest.raises(ScramError, match="the proof is wrong"):
        server.final(client.final(challenge))


def test_who_is_not_there_does_not_come_in_with_the_decoy_s_keys() -> None:
    """The keys of a decoy are zeros: even a proof that fits them is refused."""
    server = server_of({})
    first = server.first(b"n,,n=bob,r=c").decode()
    nonce = first.split(",")[0]
    for proof in (bytes(32), b"\xff" * 32):
        text = base64.b64encode(proof).decode()
        with pytest.raises(ScramError, match="the proof is wrong"):
            server.final(f"c=biws,{nonce},p={text}".encode())


@pytest.mark.parametrize(
    ("first", "complaint"),
    [
        (b"", "client-first"),
        (b"\xff", "not valid UTF-8"),
        (b"n,,n=alice", "client-first"),
        (b"n,,n=,r=c", "client-first"),
        (b"p=tls-unique,,n=alice,r=c", "channel binding"),
        (b"n,,n=alice,r=\xc3\xa9", "not printable"),
        (b"n,,n=alice,r=c,m=x", "mandatory"),
        (b"n,a=bob,n=alice,r=c", "authorization id"),
        (b"n,,n=al=ice,r=c", "invalid escape"),
        (b"n,,n=alice,r=" + b"c" * 513, "not printable"),
    ],
)
def test_a_first_message_that_makes_no_sense_is_refused(first: bytes, complaint: str) -> None:
    with pytest.raises(ScramError, match=complaint):
        server_of(ALICE).first(first)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text.replace("c=biws", "c=eSws"), "channel binding"),
        (lambda text: text.replace("r=client", "r=other"), "nonce"),
        (lambda text: text[:-8], "client-final|base64|length"),
        (lambda text: text.split(",p=")[0] + ",p=AAAA", "the length of a key"),
        (lambda text: text.split(",p=")[0], "client-final"),
        (lambda text: "", "client-final"),
    ],
)
def test_a_last_message_that_does_not_fit_the_first_is_refused(
    change: Callable[[str], str], complaint: str
) -> None:
    client, server = ScramClient(SHA_256, "alice", "secret", "client"), server_of(ALICE)
    final = client.final(server.first(client.first())).decode()
    with pytest.raises(ScramError, match=complaint):
        server.final(change(final).encode())


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"r=other,s=c2FsdA==,i=4096", "does not begin with"),
        (b"r=client,s=c2FsdA==,i=4096", "does not begin with"),
        (b"r=clientserver,s=c2FsdA==,i=4095", "4095 iterations"),
        (b"r=clientserver,s=c2FsdA==,i=%d" % (MAX_CLIENT_ITERATIONS + 1), "iterations"),
        (b"r=clientserver,s=c2FsdA==,i=99999999999999", "server-first"),
        (b"e=other-error", "server-first"),
    ],
)
def test_a_client_does_not_talk_to_a_server_that_does_it_wrong(
    answer: bytes, complaint: str
) -> None:
    client = ScramClient(SHA_256, "alice", "secret", "client")
    client.first()
    with pytest.raises(ScramError, match=complaint):
        client.final(answer)


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    client, server = ScramClient(SHA_256, "alice", "secret", "client"), server_of(ALICE)
    client.final(server.first(client.first()))
    with pytest.raises(ScramError, match="does not have the user's credential"):
        client.finish(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(ScramError, match="the server reports error 'unknown-user'"):
        client.finish(b"e=unknown-user")


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_any_bytes_are_refused_or_answered(first: bytes, final: bytes) -> None:
    server = server_of(ALICE)
    try:
        server.first(first)
        server.final(final)
    except ScramError:
        return
    raise AssertionError("let in")


@pytest.mark.parametrize(
    "message",
    [
        b"n,,n=alice,r=abc" + b",a=" * 170_000,
        b"n,,n=" + b"=2C" * 170_000 + b",r=abc",
        b"p=" + b"a." * 250_000 + b",,n=a,r=abc",
    ],
)
def test_a_huge_message_costs_next_to_nothing(message: bytes) -> None:
    """Half a megabyte of extensions used to cost a server 60 ms and 70 MB of memory.

    The time comes from splitting the message; the test measures memory, which is the same on all
    machines.
    """
    server = ScramServer(ScramMechanism.SCRAM_SHA_512, lambda name: None, "nonce", b"key")
    final = b"c=biws,r=abcnonce" + b",a=" * 170_000 + b",p=AAAA"
    tracemalloc.start()
    try:
        with pytest.raises(ScramError, match="is too long"):
            server.first(message)
        server.first(b"n,,n=alice,r=abc" + b",a=" * 2000)
        with pytest.raises(ScramError, match="is too long"):
            server.final(final)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 2 << 20
