"""Who a client is to the brokers that ask for it."""

from dataclasses import dataclass, field
from random import Random, SystemRandom

from metaquorum.sasl import ClientMechanism, client_mechanism


@dataclass(frozen=True, slots=True)
class Login:
    """A user's name and password, and the SASL mechanism by which they are shown."""

    mechanism: str
    username: str
    password: str = field(repr=False)

    def begin(self, random: Random | None) -> ClientMechanism:
        """`random` must be one that nobody can foretell. ValueError for an unknown mechanism."""
        chance = random or SystemRandom()
        return client_mechanism(self.mechanism, self.username, self.password, chance)
