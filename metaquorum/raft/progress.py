"""What a leader knows of one peer's log, and how much it sends it at a time.

    state      what it means                          sent
    ---------  -------------------------------------  -------------------------------------------
    PROBE      where the logs meet is not known       one append, then its answer is waited for
    REPLICATE  they meet, as far as it has answered   appends, a window of them
    SNAPSHOT   what it needs is no longer in the log  pieces of a snapshot, one by one

            connected            matched              needs entries that are gone
    (none) ----------> PROBE ----------> REPLICATE     PROBE, REPLICATE -> SNAPSHOT
                         ^---- refused ------'         SNAPSHOT -- taken in --> REPLICATE

A connection loses nothing while it stands, so nothing is sent twice on it, except after a refusal;
answers to what was sent before a refusal's retry say nothing new and are passed over.
"""

import math
from collections import deque
from enum import Enum, auto
from typing import Final

from metaquorum.storage.snapshot import SnapshotName

MAX_IN_FLIGHT_BYTES: Final = 4 << 20
MAX_IN_FLIGHT_APPENDS: Final = 64


class Sending(Enum):
    PROBE = auto()
    REPLICATE = auto()
    SNAPSHOT = auto()


class Transfer:
    """A snapshot on its way to one peer; which one is chosen when its first piece is read."""

    __slots__ = ("is_piece_wanted", "name", "number", "offset", "wait_until")

    def __init__(self, number: int, wait_until: float = -math.inf) -> None:
        self.number = number
        self.name: SnapshotName | None = None
        self.offset = 0
        self.is_piece_wanted = True
        self.wait_until = wait_until


class Progress:
    """One peer, as the leader of one term sees it."""

    def __init__(self, next_index: int) -> None:
        self.state = Sending.PROBE
        self.is_connected = False
        self.next_index = next_index
        self.matched_index = 0
        self.sent_commit_index = 0
        self.answered_round = 0
        self.answered_at: float | None = None
        self.caught_up_at: float | None = None
        self.transfer: Transfer | None = None
        self._in_flight: deque[tuple[int, int]] = deque()  # (round, bytes)
        self._in_flight_bytes = 0
        self._first_round = 0  # answers to earlier ones are passed over
        self._refusals = 0
        self._waits_for_heartbeat = False

    @property
    def may_send(self) -> bool:
        """Whether entries may be sent now."""
        if not self.is_connected or self._waits_for_heartbeat:
            return False
        match self.state:
            case Sending.PROBE:
                return not self._in_flight
            case Sending.REPLICATE:
                return (
                    self._in_flight_bytes < MAX_IN_FLIGHT_BYTES
                    and len(self._in_flight) < MAX_IN_FLIGHT_APPENDS
                )
            case Sending.SNAPSHOT:
                return False

    def connected(self, next_index: int) -> None:
        """Begun anew: what was in flight may not have arrived."""
        self.is_connected = True
        self._refusals = 0
        self._probe(self.matched_index + 1 if self.matched_index else next_index, 0)

    def disconnected(self) -> None:
        self.is_connected = False
        self.transfer = None
        self._forget_in_flight()

    def sent(self, number: int, size_bytes: int, count: int, commit_index: int) -> None:
        """An append of `count` entries in round `number`."""
        self.next_index += count
        self.sent_commit_index = commit_index
        if count or self.state is Sending.PROBE:
            self._in_flight.append((number, size_bytes))
            self._in_flight_bytes += size_bytes

    def answered(self, number: int, now: float) -> bool:
        """Something of that round was answered; whether it says anything of the log."""
        self.answered_round = max(self.answered_round, number)
        self.answered_at = now
        if number < self._first_round:
            return False
        while self._in_flight and self._in_flight[0][0] <= number:
            self._in_flight_bytes -= self._in_flight.popleft()[1]
        return True

    def matched(self, next_index: int) -> None:
        self.matched_index = max(self.matched_index, next_index - 1)
        self._refusals = 0
        self.state = Sending.REPLICATE
        self.next_index = max(self.next_index, next_index)

    def refused(self, next_index: int, next_round: int) -> None:
        """The log there is another; or it cannot take entries now, which is why it is asked again
        at once only the first time."""
        self._refusals += 1
        self._probe(next_index, next_round)
        self._waits_for_heartbeat = self._refusals > 1

    def may_retry(self) -> None:
        """A heartbeat is due."""
        self._waits_for_heartbeat = False

    def needs_snapshot(self, number: int) -> Transfer:
        self.state = Sending.SNAPSHOT
        self._forget_in_flight()
        self.transfer = Transfer(number)
        return self.transfer

    def restart_transfer(self, number: int, wait_until: float) -> None:
        self.transfer = Transfer(number, wait_until)

    def took_snapshot(self, last_index: int) -> None:
        """Its log is as the leader's up to there."""
        self.transfer = None
        self.next_index = last_index + 1
        self.matched(self.next_index)

    def note_caught_up(self, last_index: int, now: float) -> None:
        if self.matched_index >= last_index:
            self.caught_up_at = now

    def _probe(self, next_index: int, first_round: int) -> None:
        self.state = Sending.PROBE
        self.transfer = None
        self.next_index = max(next_index, 1)
        self._first_round = max(first_round, self._first_round)
        self._waits_for_heartbeat = False
        self._forget_in_flight()

    def _forget_in_flight(self) -> None:
        self._in_flight.clear()
        self._in_flight_bytes = 0
