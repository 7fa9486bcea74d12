"""Subjects of certificates in Java's form."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from metaquorum.security.distinguished_name import (
    MAX_PARTS,
    MAX_SUBJECT_CHARS,
    CertificateError,
    subject_of,
)

KEY = ec.generate_private_key(ec.SECP256R1())
Attributes = list[tuple[x509.ObjectIdentifier, str]]


def certificate(*relative: Attributes) -> bytes:
    name = x509.Name(
        x509.RelativeDistinguishedName([x509.NameAttribute(oid, text) for oid, text in pairs])
        for pairs in relative
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")]))
        .public_key(KEY.public_key())
        .serial_number(7)
        .not_valid_before(datetime.now(UTC))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
    )
    made = builder.sign(KEY, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.DER)


def test_the_most_specific_part_comes_first() -> None:
    made = certificate(
        [(NameOID.COUNTRY_NAME, "DE")],
        [(NameOID.STATE_OR_PROVINCE_NAME, "Bayern")],
        [(NameOID.LOCALITY_NAME, "München")],
        [(NameOID.ORGANIZATION_NAME, "Example")],
        [(NameOID.ORGANIZATIONAL_UNIT_NAME, "Sales")],
        [(NameOID.COMMON_NAME, "alice")],
    )
    assert subject_of(made) == "CN=alice,OU=Sales,O=Example,L=München,ST=Bayern,C=DE"


def test_what_would_be_read_as_structure_is_escaped() -> None:
    made = certificate([(NameOID.COMMON_NAME, ' a,CN=b+c"\\<>;# ')])
    assert subject_of(made) == 'CN=\\ a\\,CN\\=b\\+c\\"\\\\\\<\\>\\;\\#\\ '


def test_parts_that_stand_together_stay_together_and_unknown_ones_are_numbers() -> None:
    made = certificate(
        [(NameOID.DOMAIN_COMPONENT, "example")],
        [(NameOID.EMAIL_ADDRESS, "a@b.c")],
    )
    assert subject_of(made) == "1.2.840.113549.1.9.1=#16056140622e63,DC=example"
    both = subject_of(certificate([(NameOID.COMMON_NAME, "a"), (NameOID.USER_ID, "b")]))
    assert set(both.split("+")) == {"CN=a", "UID=b"}


@pytest.mark.parametrize("count", [MAX_PARTS - 1, MAX_PARTS, MAX_PARTS + 1, 3 * MAX_PARTS])
def test_a_subject_of_too_many_parts_is_refused_and_not_shortened(count: int) -> None:
    """A truncated subject would be the name of another client."""
    parts = [[(NameOID.ORGANIZATIONAL_UNIT_NAME, f"u{n}")] for n in range(count - 1)]
    made = certificate(*parts, [(NameOID.COMMON_NAME, "alice")])
    if count <= MAX_PARTS:
        subject = subject_of(made)
        assert subject.startswith("CN=alice,")
        assert subject.count(",") == count - 1
    else:
        with pytest.raises(CertificateError, match=f"more than {MAX_PARTS} parts"):
            subject_of(made)


def test_parts_that_stand_together_are_not_left_out_either() -> None:
    together = [(NameOID.COMMON_NAME, f"a{n}") for n in range(MAX_PARTS + 1)]
    with pytest.raises(CertificateError, match="more than"):
        subject_of(certificate(together))


def test_a_subject_of_too_many_characters_is_refused_and_not_shortened() -> None:
    def of(length: int) -> bytes:
        pair = (NameOID.ORGANIZATION_NAME, "x" * 60)
        parts = [[pair] for _ in range(length // 63 - 1)]
        rest = length - 63 * len(parts)
        return certificate(*parts, [(NameOID.COMMON_NAME, "c" * (rest - 3))])

    assert len(subject_of(of(MAX_SUBJECT_CHARS))) == MAX_SUBJECT_CHARS
    with pytest.raises(CertificateError, match=f"{MAX_SUBJECT_CHARS + 1} characters"):
        subject_of(of(MAX_SUBJECT_CHARS + 1))


def test_any_bytes_are_read_or_refused() -> None:
    whole = certificate([(NameOID.COMMON_NAME, "alice")])
    chance = random.Random(1)
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            subject_of(bytes(data[: chance.choice([len(data), chance.randrange(len(data))])]))
        except CertificateError:
            pass
    with pytest.raises(CertificateError):
        subject_of(b"")
