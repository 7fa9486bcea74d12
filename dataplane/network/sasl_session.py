"""SASL state of one connection; `sasl_authenticator` has the rules."""

from collections.abc import Callable
from math import inf

from metaquorum.security.sasl import ServerMechanism


class SaslSession:
    """SASL state of one connection: the exchange in progress, or the session it has opened."""

    __slots__ = (
        "exchange",
        "expires_at",
        "is_open",
        "is_raw",
        "opened",
        "request_count",
        "was_opened_by",
    )

    def __init__(self, opened: Callable[[], None]) -> None:
        """Create an unauthenticated session; `opened` is called on successful authentication."""
        self.opened = opened
        self.is_open = False
        self.is_raw = False
        self.exchange: ServerMechanism | None = None
        self.request_count = 0  # since authentication began
        self.expires_at = inf
        self.was_opened_by = ""  # the mechanism
