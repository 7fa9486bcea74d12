"""`--add-scram`, as in Kafka's storage tool: a SCRAM user that a new cluster has from the start.

SCRAM-SHA-256=[name=admin,password=secret]
SCRAM-SHA-512=[name=admin,password-file=/etc/metaquorum/password,iterations=8192]
"""

import base64
import binascii
import re
import secrets
from collections.abc import Sequence
from typing import Final

from metaquorum.cli.common.usage import UsageError
from metaquorum.metadata.records import ScramCredentialRecord
from metaquorum.quorum.controller.scram_changes import (
    MAX_NAME_CHARS,
    ScramUpsertion,
    check_upsertion,
    scram_record,
)
from metaquorum.security.scram import (
    BY_SASL_NAME,
    DEFAULT_ITERATIONS,
    SALT_BYTES,
    ScramMechanism,
    salted_password,
)
from metaquorum.wire.primitives.errors import KafkaError

MAX_PASSWORD_BYTES: Final = 4096
_FORM: Final = re.compile(r"(?P<mechanism>[A-Za-z0-9-]+)=\[(?P<fields>.*)\]", re.DOTALL)
_KEYS: Final = ("name", "password", "password-file", "iterations", "salt", "saltedpassword")


def scram_records(texts: Sequence[str]) -> list[ScramCredentialRecord]:
    """Return the records of the option's values. Raises UsageError, without secrets in its text."""
    records = [_record(text) for text in texts]
    if len({(record.name, record.mechanism) for record in records}) < len(records):
        raise UsageError("--add-scram: a user can have each mechanism only once")
    return records


def _record(text: str) -> ScramCredentialRecord:
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise UsageError("--add-scram takes MECHANISM=[name=NAME,password=PASSWORD]")
    mechanism = BY_SASL_NAME.get(form["mechanism"].upper())
    if mechanism is None:
        raise UsageError(
            f"--add-scram: the mechanism must be one of {', '.join(BY_SASL_NAME)},"
            f" not {form['mechanism']}"
        )
    fields = _fields(form["fields"])
    name = fields.get("name", "")
    if not name or len(name) > MAX_NAME_CHARS:
        raise UsageError(f"--add-scram needs a name of at most {MAX_NAME_CHARS} characters")
    iterations = fields.get("iterations", str(DEFAULT_ITERATIONS))
    if not (iterations.isascii() and iterations.isdigit() and len(iterations) < 10):
        raise UsageError(f"--add-scram: iterations must be a number, not {iterations}")
    upsertion = _upsertion(mechanism, int(iterations), fields)
    try:
        check_upsertion(upsertion)
    except KafkaError as error:
        raise UsageError(f"--add-scram: {error.message}") from None
    return scram_record(name, upsertion)


def _upsertion(
    mechanism: ScramMechanism, iterations: int, fields: dict[str, str]
) -> ScramUpsertion:
    given = [key for key in ("password", "password-file", "saltedpassword") if key in fields]
    if len(given) != 1:
        raise UsageError("--add-scram needs one of password, password-file and saltedpassword")
    salt = _data(fields, "salt") if "salt" in fields else secrets.token_bytes(SALT_BYTES)
    if given == ["saltedpassword"]:
        if "salt" not in fields:
            raise UsageError("--add-scram: saltedpassword needs salt, too")
        return ScramUpsertion(mechanism, iterations, salt, _data(fields, "saltedpassword"))
    path = fields.get("password-file")
    password = fields["password"] if path is None else _read_password(path)
    if not password:
        raise UsageError("--add-scram: the password is empty")
    salted = salted_password(mechanism, password, salt, iterations)
    return ScramUpsertion(mechanism, iterations, salt, salted)


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or key not in _KEYS or key in fields:
            raise UsageError(
                f"--add-scram: the brackets take KEY=VALUE with {', '.join(_KEYS)}, each once"
            )
        fields[key] = value.strip('"')
    return fields


def _data(fields: dict[str, str], key: str) -> bytes:
    try:
        return base64.b64decode(fields[key], validate=True)
    except binascii.Error:
        raise UsageError(f"--add-scram: {key} is not base64") from None


def _read_password(path: str) -> str:
    """Return the first line of the file."""
    try:
        with open(path, "rb") as file:
            return file.read(MAX_PASSWORD_BYTES).decode().split("\n")[0].rstrip("\r")
    except OSError as error:
        raise UsageError(f"--add-scram: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--add-scram: {path} is not UTF-8 text") from None
