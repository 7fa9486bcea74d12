"""Authentication and encryption settings of a client, from options, environment or a profile.

They come from the source of the cluster's address (a profile, otherwise environment variables such
as MQ_USERNAME), so that no password is sent to another cluster. Options override both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

if TYPE_CHECKING:
    from metaquorum.client.security import Login, Security, Tls

DEFAULT_MECHANISM: Final = "SCRAM-SHA-512"
MAX_PASSWORD_BYTES: Final = 4096
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Setting(NamedTuple):
    """Metavar and help text of an option."""

    metavar: str
    help: str


# Keys of a profile; also names of options, and of environment variables (MQ_ and capitals).
KEYS: Final[Mapping[str, Setting]] = {
    "security-protocol": Setting(
        "TEXT", "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.  [default: from the others]"
    ),
    "mechanism": Setting(
        "TEXT", f"PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.  [default: {DEFAULT_MECHANISM}]"
    ),
    "username": Setting("TEXT", "User name for SASL."),
    "password-file": Setting("FILE", "FILE with the password for SASL (or MQ_PASSWORD)."),
    "tls-authorities": Setting(
        "FILE", "PEM file: trusted certificate authorities.  [default: the system's]"
    ),
    "tls-certificate": Setting(
        "FILE", "PEM file: client certificate, if the cluster requires one."
    ),
    "tls-key": Setting(
        "FILE", "PEM file: key of the client certificate.  [default: the same file]"
    ),
}
_OF_TLS: Final = ("tls-authorities", "tls-certificate", "tls-key")


def security_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for key, setting in reversed(list(KEYS.items())):
        function = click.option(f"--{key}", metavar=setting.metavar, help=setting.help)(function)
    return function


def resolve_security(
    options: Mapping[str, Any], profile: Mapping[str, Any], environment: Mapping[str, str]
) -> Security:
    """Return the security settings. Raises click.UsageError if they contradict each other."""
    given: dict[str, str] = {}
    for key in KEYS:
        name = key.replace("-", "_")
        base = profile.get(key) if profile else environment.get(f"MQ_{name.upper()}")
        if value := options.get(name) or base:
            given[key] = value
    password = "" if profile else environment.get("MQ_PASSWORD", "")
    protocol = given.get("security-protocol", "").upper() or _implied(given)
    if protocol not in PROTOCOLS:
        raise click.UsageError(
            f"the security protocol must be one of {', '.join(PROTOCOLS)}, not {protocol}"
        )
    has_sasl, has_tls = protocol.startswith("SASL_"), protocol.endswith("SSL")
    if ("username" in given and not has_sasl) or (not has_tls and any(k in given for k in _OF_TLS)):
        raise click.UsageError(
            f"the security protocol {protocol} contradicts the other security options"
        )
    return _security(
        _tls(given) if has_tls else None, _login(given, password) if has_sasl else None
    )


def _security(tls: Tls | None, login: Login | None) -> Security:
    import metaquorum.client.security as made  # a late import: --help does not need it

    return made.Security(tls, login)


def _implied(given: Mapping[str, str]) -> str:
    has_tls = any(key in given for key in _OF_TLS)
    if "username" in given:
        return "SASL_SSL" if has_tls else "SASL_PLAINTEXT"
    return "SSL" if has_tls else "PLAINTEXT"


def _tls(given: Mapping[str, str]) -> Tls:
    if "tls-key" in given and "tls-certificate" not in given:
        raise click.UsageError("tls-key needs tls-certificate")
    import metaquorum.client.security as made

    return made.Tls(
        given.get("tls-authorities"), given.get("tls-certificate"), given.get("tls-key")
    )


def _login(given: Mapping[str, str], password: str) -> Login:
    from metaquorum.security.sasl import MECHANISMS

    mechanism = given.get("mechanism", DEFAULT_MECHANISM).upper()
    if mechanism not in MECHANISMS:
        raise click.UsageError(
            f"the mechanism must be one of {', '.join(MECHANISMS)}, not {mechanism}"
        )
    if "username" not in given:
        raise click.UsageError("SASL needs a user name (--username)")
    if path := given.get("password-file"):
        password = _read_password(path)
    if not password:
        raise click.UsageError(
            "SASL needs a password: --password-file, or the variable MQ_PASSWORD"
        )
    import metaquorum.client.security as made

    return made.Login(mechanism, given["username"], password)


def _read_password(path: str) -> str:
    """Return the first line of the file."""
    try:
        with open(os.path.expanduser(path), "rb") as file:
            data = file.read(MAX_PASSWORD_BYTES + 1)
        if len(data) > MAX_PASSWORD_BYTES:
            raise click.UsageError(f"{path} is too long for a password")
        return data.decode().split("\n")[0].rstrip("\r")
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"{path} is not UTF-8 text") from None
