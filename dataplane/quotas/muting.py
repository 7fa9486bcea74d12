"""Muted connections: not read for the throttle time after a quota violation (KIP-219).

The response, with the throttle time, is sent first. Then no request of the connection is handled
until the time is over; bytes received meanwhile fill one buffer, and further ones stay in the
kernel and at the sender. A quota change may shorten the time.
"""

from typing import Final, NamedTuple

import trio

MAX_THROTTLE_MS: Final = 2**31 - 1


class ClientName(NamedTuple):
    """The name of a client for its quotas."""

    principal: str
    client_id: str | None

    @property
    def user(self) -> str:
        return self.principal.removeprefix("User:")


class Mute:
    """The mute of one connection: its throttle time and the violated quota."""

    __slots__ = ("_mutes", "address", "key", "name", "scope", "seconds")

    def __init__(
        self,
        seconds: float,
        key: str,
        name: ClientName,
        address: tuple[str, int],
        mutes: dict["Mute", None],
    ) -> None:
        """Start a mute of `seconds`; it is in `mutes` until `end`."""
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
        """End the mute after `seconds`, if it would not end earlier."""
        self.scope.deadline = min(self.scope.deadline, trio.current_time() + seconds)

    def end(self) -> None:
        """Remove the mute from `mutes`. Idempotent."""
        self._mutes.pop(self, None)


def throttle_ms(seconds: float) -> int:
    """Return a throttle time in milliseconds for a response, rounded up."""
    return min(MAX_THROTTLE_MS, -int(-seconds * 1000 // 1))
