"""What can go wrong between an administrator and a cluster."""

from typing import Final

from wire.primitives.errors import ErrorCode, KafkaError

_CODES: Final = {int(code): code for code in ErrorCode}


class AdminError(Exception):
    """Something that no broker said about what was asked; the message is a sentence."""


class UnreachableError(AdminError):
    """No broker that could answer did: refused, broken off, or too late."""


class InterruptedChangeError(AdminError):
    """A change was asked for and the answer never came: it may or may not have been made."""


class UnsendableError(AdminError):
    """The protocol has no room for what is asked; nothing was sent."""


class NotServedError(AdminError):
    """The cluster does not serve the API, or none of the versions spoken here."""

    def __init__(self, api: str, message: str) -> None:
        self.api = api
        super().__init__(message)


class BrokerError(KafkaError):
    """A broker's refusal of one thing: `subject` says of what, `message` the broker's reason."""

    def __init__(self, code: ErrorCode, message: str = "", subject: str = "") -> None:
        super().__init__(code, message)
        self.subject = subject

    def __str__(self) -> str:
        return f"{self.subject}: {self.message}" if self.subject else self.message


def broker_error(code: int, message: str | None, subject: str) -> BrokerError:
    """From the fields of an answer; a code that is newer than our table is named by its number."""
    known = _CODES.get(code)
    if known is None:
        text = f"error code {code}"
        return BrokerError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"{message} ({text})" if message else text, subject
        )
    return BrokerError(known, message or "", subject)
