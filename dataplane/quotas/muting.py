"""A connection that is not read for a while, because its client has used too much (KIP-219).

The answer, which says for how long, has left. Nothing more of the connection is handled until the
time is over; what comes meanwhile fills one buffer and then stays with the sender. The time may be
cut short when a quota changes.
"""

from typing import Final, NamedTuple

import trio

MAX_THROTTLE_MS: Final = 2**31 - 1


class ClientName(NamedTuple):
    """By what a client is known to its quotas."""

    principal: str
    client_id: str | None

    @property
    def user(self) -> str:
        return self.principal.removeprefix("User:")


class Mute:
    """For how long one connection is not read, and by which of its client's quotas."""

    __slots__ = ("_mutes", "address", "key", "name", "scope", "seconds")

    def __init__(
        self,
        seconds: float,
        key: str,
        name: ClientName,
        address: tuple[str, int],
        mutes: dict["Mute", None],
    ) -> None:
        """It is among `mutes` until its end."""
        self.seconds = seconds
        self.key = key
        self.name = name
        self.address = address
        self.scope = trio.CancelScope(deadline=trio.current_time() + seconds)
        self._mutes = mutes
        mutes[self] = None

    @property
    def left_s(self) -> float:
        return max(0.0, self.scope.deadline - trio.current_time())

    def shorten(self, seconds: float) -> None:
        """It ends after so many seconds, if it would not earlier."""
        self.scope.deadline = min(self.scope.deadline, trio.current_time() + seconds)

    def end(self) -> None:
        """Nobody waits for it any more."""
        self._mutes.pop(self, None)


def throttle_ms(seconds: float) -> int:
    """As answers say it; not less."""
    return min(MAX_THROTTLE_MS, -int(-seconds * 1000 // 1))
