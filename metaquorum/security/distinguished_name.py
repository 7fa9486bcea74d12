"""Subject of a certificate as text in Java's form (RFC 2253), which Kafka uses as principal name.

Example: `CN=alice,OU=Sales,O=Example`, the most specific part first.

The certificate parser of Python drops information that this needs (multi-valued parts, types of
values). This module therefore parses the DER encoding up to the subject.
"""

import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

MAX_PARTS: Final = 100
# X.520 limits most attributes to 64 characters, so that legitimate names have some hundreds. A
# longer name would use memory for each connection, and could not be the name of a quota entity.
MAX_SUBJECT_CHARS: Final = 4096
_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OBJECT_ID: Final = 0x06
_VERSION: Final = 0xA0
_FIELDS_BEFORE_SUBJECT: Final = 4  # serial number, algorithm, issuer, validity
_ENCODINGS: Final = {
    0x0C: "utf-8",
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # T61String
    0x16: "ascii",  # IA5String
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')


class CertificateError(Exception):
    """Raised if the subject of a certificate cannot be parsed."""


class _Value(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate in DER. Raises CertificateError if it is malformed."""
    content = certificate
    for _ in range(2):
        outer = next(_values(content), None)
        if outer is None or outer.tag != _SEQUENCE:
            raise CertificateError("the data is not a certificate")
        content = outer.content
    parts = list(_values(content))
    if parts and parts[0].tag == _VERSION:
        del parts[0]
    if len(parts) <= _FIELDS_BEFORE_SUBJECT:
        raise CertificateError("the data is not a certificate")
    return name_text(parts[_FIELDS_BEFORE_SUBJECT].content)


def name_text(content: bytes) -> str:
    """Return the text of a name, given the content of its DER encoding.

    Raises CertificateError if the name is malformed or longer than MAX_SUBJECT_CHARS.
    """
    names = ["+".join(map(_pair, _parts(relative))) for relative in _values(content)]
    text = ",".join(reversed(names))
    if len(text) > MAX_SUBJECT_CHARS:
        raise CertificateError(
            f"the subject has {len(text)} characters, above the limit of {MAX_SUBJECT_CHARS}"
        )
    return text


def _parts(relative: _Value) -> list[_Value]:
    pairs = list(_values(relative.content))
    if relative.tag != _SET or not pairs:
        raise CertificateError("the subject is malformed")
    return pairs


def _pair(pair: _Value) -> str:
    both = list(_values(pair.content))
    if len(both) != 2 or both[0].tag != _OBJECT_ID:
        raise CertificateError("the subject is malformed")
    kind, value = both
    oid = _object_id(kind.content)
    keyword, encoding = _KEYWORDS.get(oid), _ENCODINGS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or oid}=#{value.whole.hex()}"
    try:
        return f"{keyword}={_escaped(value.content.decode(encoding))}"
    except UnicodeDecodeError:
        raise CertificateError("a part of the subject is not valid text") from None


def _escaped(text: str) -> str:
    inner = text.strip(" ")
    start = len(text) - len(text.lstrip(" "))
    escaped = "".join(f"\\{c}" if c in _ESCAPED else "\\00" if c == "\0" else c for c in inner)
    return "\\ " * start + escaped + "\\ " * (len(text) - start - len(inner))


def _object_id(content: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers or len(content) > MAX_PARTS:
        raise CertificateError("the subject is malformed")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _values(data: bytes) -> Iterator[_Value]:
    """Yield the values of a DER structure.

    Raises CertificateError if the structure is malformed or has more than MAX_PARTS values: a
    truncated subject could be the name of another client.
    """
    position = 0
    for count in itertools.count():
        if position >= len(data):
            return
        if count == MAX_PARTS:
            raise CertificateError(f"a field of the certificate has more than {MAX_PARTS} parts")
        start, tag = position, data[position]
        length, position = _length(data, position + 1)
        if length > len(data) - position:
            raise CertificateError("the certificate is truncated")
        position += length
        yield _Value(tag, data[position - length : position], data[start:position])


def _length(data: bytes, position: int) -> tuple[int, int]:
    if position >= len(data):
        raise CertificateError("the certificate is truncated")
    first = data[position]
    position += 1
    if first < 0x80:
        return first, position
    count = first & 0x7F
    if not 0 < count <= 4 or position + count > len(data):
        raise CertificateError("a length field of the certificate is invalid")
    return int.from_bytes(data[position : position + count], "big"), position + count
