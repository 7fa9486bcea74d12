"""Security settings of a client: SASL login, trusted TLS authorities and client certificate."""

from __future__ import annotations

from dataclasses import field
from random import Random, SystemRandom
from typing import TYPE_CHECKING

from metaquorum.security.sasl import ClientMechanism, client_mechanism
from metaquorum.wire.primitives.frozen import frozen

if TYPE_CHECKING:
    import ssl


@frozen
class Login:
    """SASL mechanism, name and password of a user."""

    mechanism: str
    username: str
    password: str = field(repr=False)

    def begin(self, random: Random | None) -> ClientMechanism:
        """Return the client side of a new SASL exchange.

        `random` must be cryptographically secure, except in simulations; None: the system's.
        Raises ValueError if the mechanism is unknown.
        """
        chance = random or SystemRandom()
        return client_mechanism(self.mechanism, self.username, self.password, chance)


@frozen
class Tls:
    """Paths of PEM files. Without `authorities`, the trusted authorities of this machine apply."""

    authorities: str | None = None
    certificate: str | None = None  # client certificate; its key is in `key`, or in this file
    key: str | None = None
    verify_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Return the TLS context. Blocking: reads the files.

        Raises ValueError, naming the file, if a file cannot be read or used.
        """
        import ssl  # takes milliseconds, and most clients do not need it

        path = self.authorities or ""
        try:
            context = ssl.create_default_context(cafile=self.authorities)
            context.check_hostname = self.verify_hostname
            if self.certificate is not None:
                path = self.certificate
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except ssl.SSLError as error:
            raise ValueError(f"{path} cannot be used for TLS: {error.reason or error}") from None
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        return context


def _no_password() -> str:
    raise ValueError("an encrypted key cannot be used: configure an unencrypted key")


@frozen
class Security:
    """Security protocol of a client: PLAINTEXT with neither field, SASL_SSL with both."""

    tls: Tls | None = None
    login: Login | None = None


PLAINTEXT = Security()
