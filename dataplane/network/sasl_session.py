"""What one connection of a listener with SASL has shown so far; `authentication` has the rules."""

from collections.abc import Callable
from math import inf

from metaquorum.security.sasl import ServerMechanism


class SaslSession:
    """How far one client has come."""

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
        """`opened` is called when the client has shown who it is."""
        self.opened = opened
        self.is_open = False
        self.is_raw = False
        self.exchange: ServerMechanism | None = None
        self.request_count = 0  # since it began to show who it is
        self.expires_at = inf
        self.was_opened_by = ""  # the mechanism
