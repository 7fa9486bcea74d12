"""The canonical text of IP addresses."""

import pytest

from metaquorum.config.addresses import canonical, counts_by_address, is_anywhere


@pytest.mark.parametrize(
    ("text", "known_as"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8::00a1", "2001:db8::a1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::FFFF:c000:201", "192.0.2.1"),
    ],
)
def test_an_address_is_known_by_one_text(text: str, known_as: str) -> None:
    assert canonical(text) == known_as


@pytest.mark.parametrize("text", ["", "localhost", "192.0.2", "192.0.2.1:80", "[::1]"])
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="does not appear to be"):
        canonical(text)


def test_some_addresses_are_no_host() -> None:
    assert all(map(is_anywhere, ("", "0.0.0.0", "::", "0:0:0:0:0:0:0:0")))
    assert not any(map(is_anywhere, ("::1", "127.0.0.1", "log1", "0", "a:b")))


def test_counts_by_address() -> None:
    assert counts_by_address("") == {}
    assert counts_by_address("192.0.2.1:5, [2001:DB8::1]:0,::1:7") == {
        "192.0.2.1": 5,
        "2001:db8::1": 0,
        "::1": 7,
    }
    for wrong in ("192.0.2.1", "192.0.2.1:", "192.0.2.1:-1", "192.0.2.1:2147483648"):
        with pytest.raises(ValueError, match="is not ADDRESS:COUNT"):
            counts_by_address(wrong)
    with pytest.raises(ValueError, match="names are not supported"):
        counts_by_address("localhost:5")
