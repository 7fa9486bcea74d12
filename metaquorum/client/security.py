"""Who a client is to the brokers that ask for it, and whom it believes."""

from __future__ import annotations

from dataclasses import field
from random import Random, SystemRandom
from typing import TYPE_CHECKING

from metaquorum.security.sasl import ClientMechanism, client_mechanism
from wire.primitives.frozen import frozen

if TYPE_CHECKING:
    import ssl


@frozen
class Login:
    """A user's name and password, and the SASL mechanism by which they are shown."""

    mechanism: str
    username: str
    password: str = field(repr=False)

    def begin(self, random: Random | None) -> ClientMechanism:
        """`random` must be one that nobody can foretell. ValueError for an unknown mechanism."""
        chance = random or SystemRandom()
        return client_mechanism(self.mechanism, self.username, self.password, chance)


@frozen
class Tls:
    """Paths of PEM files. Without `authorities`, those that this machine believes."""

    authorities: str | None = None
    certificate: str | None = None  # to be shown, with `key` (in the same file if there is none)
    key: str | None = None
    verify_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """ValueError names the file that cannot be used."""
        import ssl  # which takes milliseconds, and most clients need none

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
    raise ValueError("a key that is encrypted cannot be used: give one that is not")


@frozen
class Security:
    """What Kafka calls a security protocol: PLAINTEXT with neither, SASL_SSL with both."""

    tls: Tls | None = None
    login: Login | None = None


PLAINTEXT = Security()
