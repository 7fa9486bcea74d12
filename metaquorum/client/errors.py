"""Errors of the client."""

from collections.abc import Sequence
from typing import Final

from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

_CODES: Final = {int(code): code for code in ErrorCode}


class AdminError(Exception):
    """Base class of errors that are not the error code of a broker; the message is a sentence."""


class UnreachableError(AdminError):
    """Raised if no broker answered: connections were refused, failed or timed out.

    `causes`: the errors of these connections.
    """

    def __init__(self, message: str, causes: Sequence[Exception] = ()) -> None:
        super().__init__(message)
        self.causes = tuple(causes)


class TlsHandshakeError(ConnectionError):
    """Raised if the TLS handshake of a connection failed."""


class TlsExpectedError(EOFError):
    """Raised if a broker closed the connection at the first request, as one that expects TLS."""


class LoginExpectedError(EOFError):
    """Raised if a broker closed the connection after the version negotiation, without a login."""


class InterruptedChangeError(AdminError):
    """Raised if the response to a change was lost: the change may or may not have been made."""


class UnsendableError(AdminError):
    """Raised if the protocol cannot encode the request; nothing was sent."""


class NotServedError(AdminError):
    """Raised if the cluster does not serve an API in a version that this client supports.

    `api`: name of the API, such as "CreateTopics".
    """

    def __init__(self, api: str, message: str) -> None:
        self.api = api
        super().__init__(message)


class BrokerError(KafkaError):
    """Error code with which a broker refused one resource.

    `subject`: the resource, such as "topic orders"; `message`: the reason of the broker.
    """

    def __init__(self, code: ErrorCode, message: str = "", subject: str = "") -> None:
        super().__init__(code, message)
        self.subject = subject

    def __str__(self) -> str:
        return f"{self.subject}: {self.message}" if self.subject else self.message


def broker_error(code: int, message: str | None, subject: str) -> BrokerError:
    """Return the error for the fields of a response; unknown codes are given as numbers."""
    known = _CODES.get(code)
    if known is None:
        text = f"error code {code}"
        return BrokerError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"{message} ({text})" if message else text, subject
        )
    return BrokerError(known, message or "", subject)
