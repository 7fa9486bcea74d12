"""Why a group rebalanced: its last rebalances, with cause and members, for `groups explain`.

Plain state, bounded: `MOST_REBALANCES` entries, `MOST_NAMES` members in each list of an entry, and
`MOST_CHARACTERS` of each name, because clients choose their names.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from wire.primitives.frozen import frozen

MOST_REBALANCES: Final = 16
MOST_NAMES: Final = 20
MOST_CHARACTERS: Final = 200


class Cause(Enum):
    """The event that started a rebalance, as a short code."""

    NEW_MEMBER = "new-member"
    LEADER_REJOINED = "leader-rejoined"
    METADATA_CHANGED = "metadata-changed"
    STATIC_MEMBER_RESTARTED = "static-member-restarted"
    PROTOCOL_CHANGED = "protocol-changed"
    MEMBER_LEFT = "member-left"
    SESSION_EXPIRED = "session-expired"
    SYNC_EXPIRED = "sync-expired"
    ASSIGNMENT_NOT_STORED = "assignment-not-stored"
    OVER_CAPACITY = "over-capacity"


@frozen
class RebalanceView:
    """A rebalance; `length_s` is None while it runs."""

    started_ms: int
    length_s: float | None
    cause: Cause
    member_id: str
    client_id: str
    client_host: str
    generation: int  # the one that it made; -1 while members join
    joined: tuple[str, ...]
    left: tuple[str, ...]
    late: tuple[str, ...]  # removed because they did not join or sync in time


@dataclass(slots=True)
class _Names:
    joined: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Entry:
    started: float
    started_ms: int
    cause: Cause
    member_id: str
    client_id: str
    client_host: str
    names: _Names
    generation: int = -1
    length_s: float | None = None


class RebalanceHistory:
    """The last rebalances of one group.

    A member joins or leaves just before the rebalance that it causes starts: its name goes to the
    entry that runs, or else to the next one.
    """

    __slots__ = ("_entries", "_names", "_running")

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque(maxlen=MOST_REBALANCES)
        self._running: _Entry | None = None
        self._names = _Names()

    def started(
        self,
        now: float,
        now_ms: int,
        cause: Cause,
        member_id: str = "",
        client_id: str = "",
        client_host: str = "",
    ) -> None:
        """Begin an entry. A rebalance that interrupts another one ends the entry of that one."""
        if self._running is not None:
            self.finished(now, -1)
        self._running = _Entry(
            now,
            now_ms,
            cause,
            member_id[:MOST_CHARACTERS],
            client_id[:MOST_CHARACTERS],
            client_host[:MOST_CHARACTERS],
            self._names,
        )
        self._entries.append(self._running)

    def joined(self, member_id: str) -> None:
        _add(self._names.joined, member_id)

    def left(self, member_id: str) -> None:
        _add(self._names.left, member_id)

    def late(self, member_id: str) -> None:
        _add(self._names.late, member_id)

    def finished(self, now: float, generation: int) -> None:
        """End the running entry, if there is one, with the generation that it has made."""
        if self._running is not None:
            self._running.length_s = now - self._running.started
            self._running.generation = generation
            self._running = None
            self._names = _Names()

    def views(self) -> tuple[RebalanceView, ...]:
        """Return the rebalances, the newest last."""
        return tuple(_view(entry) for entry in self._entries)


def _add(names: list[str], name: str) -> None:
    if len(names) < MOST_NAMES:
        names.append(name[:MOST_CHARACTERS])


def _view(entry: _Entry) -> RebalanceView:
    return RebalanceView(
        entry.started_ms,
        entry.length_s,
        entry.cause,
        entry.member_id,
        entry.client_id,
        entry.client_host,
        entry.generation,
        tuple(entry.names.joined),
        tuple(entry.names.left),
        tuple(entry.names.late),
    )
