"""PLAIN, and the configs that contain its users."""

from contextlib import suppress

import pytest

from metaquorum.security.sasl import (
    AuthenticationError,
    PlainClient,
    PlainServer,
    jaas_options,
    plain_users,
)

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def test_plain_lets_in_who_knows_the_password() -> None:
    server = PlainServer({"alice": "s3cret ü"})
    assert server.respond(PlainClient("alice", "s3cret ü").first()) == b""
    assert server.is_complete
    assert server.username == "alice"


@pytest.mark.parametrize(
    "message",
    [
        b"\0alice\0wrong",
        b"\0bob\0secret",
        b"\0bob\0\0",
        b"\0alice\0",
        b"\0\0secret",
        b"bob\0alice\0secret",
        b"alice\0secret",
        b"\0alice\0secret\0more",
        b"\0\xff\0secret",
        b"",
    ],
)
def test_plain_refuses_everybody_else_and_tells_nothing(message: bytes) -> None:
    server = PlainServer({"alice": "secret"})
    with pytest.raises(AuthenticationError) as caught:
        server.respond(message)
    assert not server.is_complete
    assert "secret" not in str(caught.value) + caught.value.reason
    assert "such user" not in str(caught.value)


def test_passwords_are_compared_as_digests_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a comparison reveals neither a password's length nor whether the user exists."""
    lengths: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        lengths.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr("metaquorum.security.sasl.hmac.compare_digest", compare)
    server = {"alice": "s3cret"}
    for name, password in (("alice", "wrong and long"), ("nobody", "x"), ("alice", "s3cret")):
        with suppress(AuthenticationError):
            PlainServer(server).respond(PlainClient(name, password).first())
    assert lengths == [(32, 32)] * 3


def test_a_module_s_options_are_read_as_kafka_writes_them() -> None:
    text = f"""{MODULE}
        username="admin" password="a \\"b\\" = c;d"
        user_admin='x' user_alice=plain ;
    """
    options = jaas_options(text)
    assert options["username"] == "admin"
    assert options["password"] == 'a "b" = c;d'
    assert plain_users(options) == {"admin": "x", "alice": "plain"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f'{MODULE} user_a="secret"', "semicolon"),
        (f'{MODULE} user_a="secret;', "quotation"),
        ('user_a="secret" b="secret";', "login module"),
        ("secret;", "login module"),
        (f"{MODULE} secret;", "NAME=VALUE"),
    ],
)
def test_a_module_s_options_that_make_no_sense_are_refused_without_showing_them(
    text: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        jaas_options(text)
    assert "secret" not in str(caught.value)
