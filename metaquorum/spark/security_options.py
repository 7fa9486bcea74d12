"""Parser of Kafka's security options, those of the Java clients and of librdkafka.

Supported: PLAIN, SCRAM, and TLS with PEM files. No message repeats a value that may be a secret.
"""

from __future__ import annotations

from typing import Final

from metaquorum.client.security import Login, Security, Tls
from metaquorum.spark.given_options import GivenOptions, OptionError
from metaquorum.spark.jaas import parse_jaas


def parse_security(given: GivenOptions) -> Security:
    protocol = given.choice(
        "kafka.security.protocol", ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"), "plaintext"
    )
    login = _login(given, protocol.upper()) if protocol.startswith("sasl") else None
    tls = _tls(given) if protocol.endswith("ssl") else None
    for prefix, needed, there in (
        ("kafka.sasl.", "SASL_SSL or SASL_PLAINTEXT", login is not None),
        ("kafka.ssl.", "SSL or SASL_SSL", tls is not None),
    ):
        if not there and (name := given.any_name(prefix)):
            raise OptionError(
                f"option {name} is given, but kafka.security.protocol is {protocol.upper()}: "
                f"set it to {needed}"
            )
    return Security(tls, login)


# Supported SASL mechanisms, and the login module of the Java clients for each.
_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def _login(given: GivenOptions, protocol: str) -> Login:
    mechanism = given.take("kafka.sasl.mechanism")
    supported = ", ".join(_LOGIN_MODULES)
    if mechanism is None:
        raise OptionError(
            f"option kafka.sasl.mechanism is required with {protocol}: one of {supported} "
            "(Kafka's own default, GSSAPI, is not supported)"
        )
    if mechanism not in _LOGIN_MODULES:
        raise OptionError(
            f"option kafka.sasl.mechanism is {mechanism[:100]!r}; supported are {supported}"
        )
    jaas = given.take("kafka.sasl.jaas.config")
    username, password = given.take("kafka.sasl.username"), given.take("kafka.sasl.password")
    if jaas is not None:
        if username is not None or password is not None:
            raise OptionError(
                "give either kafka.sasl.jaas.config, or kafka.sasl.username and "
                "kafka.sasl.password, not both"
            )
        username, password = _jaas_login(jaas, mechanism)
    if not username or password is None:
        raise OptionError(
            f"{protocol} needs a user: give kafka.sasl.jaas.config, or kafka.sasl.username and "
            "kafka.sasl.password"
        )
    return Login(mechanism, username, password)


def _jaas_login(text: str, mechanism: str) -> tuple[str, str]:
    module = _LOGIN_MODULES[mechanism]
    try:
        found, entries = parse_jaas(text)
    except ValueError as error:
        raise OptionError(
            f"option kafka.sasl.jaas.config {error}; it must be of the form "
            f'{module} required username="..." password="...";'
        ) from None
    if found != module:
        raise OptionError(
            f"option kafka.sasl.jaas.config has a login module that does not fit the mechanism "
            f"{mechanism}: use {module}"
        )
    unknown = entries.keys() - {"username", "password"}
    if unknown or not entries.get("username") or "password" not in entries:
        raise OptionError(
            "option kafka.sasl.jaas.config must have the entries username and password, and no "
            "others: delegation tokens are not supported"
        )
    return entries["username"], entries["password"]


_PEM_TRUST: Final = (
    "keytool -list -rfc -keystore truststore.jks > ca.pem, then set kafka.ssl.truststore.type to "
    "PEM and kafka.ssl.truststore.location to ca.pem"
)
_PEM_KEY: Final = (
    "keytool -importkeystore -srckeystore keystore.jks -destkeystore keystore.p12 -deststoretype "
    "PKCS12, and openssl pkcs12 -in keystore.p12 -nodes -out keystore.pem, then set "
    "kafka.ssl.keystore.type to PEM and kafka.ssl.keystore.location to keystore.pem"
)


def _tls(given: GivenOptions) -> Tls:
    """Return the TLS files, which every executor must have; a connection reads them later."""
    authorities = given.take("kafka.ssl.ca.location")
    truststore = _pem_store(given, "truststore", _PEM_TRUST)
    certificate = given.take("kafka.ssl.certificate.location")
    key = given.take("kafka.ssl.key.location")
    keystore = _pem_store(given, "keystore", _PEM_KEY)
    if authorities is not None and truststore is not None:
        raise OptionError(
            "give either kafka.ssl.ca.location or kafka.ssl.truststore.location, not both"
        )
    if keystore is not None and (certificate is not None or key is not None):
        raise OptionError(
            "give either kafka.ssl.keystore.location, or kafka.ssl.certificate.location and "
            "kafka.ssl.key.location, not both"
        )
    if key is not None and certificate is None:
        raise OptionError("option kafka.ssl.key.location needs kafka.ssl.certificate.location")
    identification = given.choice(
        "kafka.ssl.endpoint.identification.algorithm", ("https", "", "none"), "https"
    )
    return Tls(
        authorities=authorities or truststore,
        certificate=certificate or keystore,
        key=key,
        verify_hostname=identification == "https",
    )


def _pem_store(given: GivenOptions, store: str, how: str) -> str | None:
    location = given.take(f"kafka.ssl.{store}.location")
    kind = given.take(f"kafka.ssl.{store}.type")
    password = given.take(f"kafka.ssl.{store}.password")
    if location is None and kind is None and password is None:
        return None
    if (kind or "JKS").upper() != "PEM":
        raise OptionError(
            f"option kafka.ssl.{store}.type is {(kind or 'not given, so JKS')[:100]}, but this "
            f"client reads only PEM files; convert the store: {how}"
        )
    if password is not None:
        raise OptionError(
            f"option kafka.ssl.{store}.password is refused: PEM files have no password, and an "
            "encrypted key cannot be used; leave the option out"
        )
    if location is None:
        raise OptionError(f"option kafka.ssl.{store}.location is required with the type PEM")
    return location
