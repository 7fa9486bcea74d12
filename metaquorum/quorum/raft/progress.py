"""Replication progress of one peer, as the leader knows it, and flow control.

    state      meaning                                 sent
    ---------  --------------------------------------  ------------------------------------------
    PROBE      the common prefix of the logs is        one append, then wait for its response
               unknown
    REPLICATE  the logs match up to the last response  a window of appends
    SNAPSHOT   the log no longer has the entries that  chunks of a snapshot, one at a time
               the peer needs

            connected            matched              needs entries that the log has dropped
    (none) ----------> PROBE ----------> REPLICATE     PROBE, REPLICATE -> SNAPSHOT
                         ^---- refused ------'         SNAPSHOT -- installed --> REPLICATE

An open connection loses no message, so nothing is sent twice on it, except after a refusal.
Responses to messages sent before the retry carry no new information and are ignored.
"""

import math
from collections import deque
from enum import Enum, auto
from typing import Final

from metaquorum.quorum.storage.snapshot import SnapshotName

MAX_IN_FLIGHT_BYTES: Final = 4 << 20
MAX_IN_FLIGHT_APPENDS: Final = 64


class Sending(Enum):
    PROBE = auto()
    REPLICATE = auto()
    SNAPSHOT = auto()


class Transfer:
    """Snapshot transfer to one peer; the first read chooses the snapshot."""

    __slots__ = ("is_piece_wanted", "name", "number", "offset", "wait_until")

    def __init__(self, number: int, wait_until: float = -math.inf) -> None:
        self.number = number
        self.name: SnapshotName | None = None
        self.offset = 0
        self.is_piece_wanted = True
        self.wait_until = wait_until


class Progress:
    """Progress of one peer in one term of the leader."""

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
        self._first_round = 0  # responses to earlier rounds are ignored
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
        """Restart with a probe, because messages in flight may not have arrived."""
        self.is_connected = True
        self._refusals = 0
        self._probe(self.matched_index + 1 if self.matched_index else next_index, 0)

    def disconnected(self) -> None:
        self.is_connected = False
        self.transfer = None
        self._forget_in_flight()

    def sent(self, number: int, size_bytes: int, count: int, commit_index: int) -> None:
        """Record an append of `count` entries in round `number`."""
        self.next_index += count
        self.sent_commit_index = commit_index
        if count or self.state is Sending.PROBE:
            self._in_flight.append((number, size_bytes))
            self._in_flight_bytes += size_bytes

    def answered(self, number: int, now: float) -> bool:
        """Record a response to that round; return whether it has new information on the log."""
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
        """Retry from `next_index`, because the log differs or the peer cannot store entries now.

        Only the first retry is sent at once; later ones wait for a heartbeat. A peer that no longer
        has what it had matched was started again with an empty disk.
        """
        self.matched_index = min(self.matched_index, max(next_index, 1) - 1)
        self._refusals += 1
        self._probe(next_index, next_round)
        self._waits_for_heartbeat = self._refusals > 1

    def may_retry(self) -> None:
        """Allow a delayed retry, because a heartbeat is due."""
        self._waits_for_heartbeat = False

    def needs_snapshot(self, number: int) -> Transfer:
        self.state = Sending.SNAPSHOT
        self._forget_in_flight()
        self.transfer = Transfer(number)
        return self.transfer

    def restart_transfer(self, number: int, wait_until: float) -> None:
        self.transfer = Transfer(number, wait_until)

    def took_snapshot(self, last_index: int) -> None:
        """Record that the peer's log equals the leader's up to `last_index`."""
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

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        assert 0 <= self.matched_index < self.next_index, (self.matched_index, self.next_index)
        assert self.transfer is None or self.state is Sending.SNAPSHOT, self.state
        assert not self._in_flight or self.is_connected
        assert not self._in_flight or self.state is not Sending.SNAPSHOT
        assert self._in_flight_bytes == sum(size_bytes for _, size_bytes in self._in_flight)
        rounds = [number for number, _ in self._in_flight]
        assert rounds == sorted(rounds), rounds
        assert self.state is not Sending.PROBE or len(rounds) <= 1, rounds
