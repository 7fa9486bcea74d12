"""Counts of successful and failed authentications of one listener. Plain state."""


class LoginCounts:
    """Authentication counts of one listener, with the names of Kafka's metrics.

    `SaslAuthenticator` counts SASL authentications, `ClientConnection` TLS handshakes.
    """

    __slots__ = (
        "expired_connections_killed_count",
        "failed_authentication_total",
        "failed_reauthentication_total",
        "successful_authentication_total",
        "successful_reauthentication_total",
    )

    def __init__(self) -> None:
        self.successful_authentication_total = 0
        self.failed_authentication_total = 0
        self.successful_reauthentication_total = 0
        self.failed_reauthentication_total = 0
        self.expired_connections_killed_count = 0

    def succeeded(self, *, again: bool = False) -> None:
        if again:
            self.successful_reauthentication_total += 1
        else:
            self.successful_authentication_total += 1

    def failed(self, *, again: bool = False) -> None:
        if again:
            self.failed_reauthentication_total += 1
        else:
            self.failed_authentication_total += 1
