"""When a voter that does not lead asks for an election, and who would vote for it.

    silence (0.5 to 1 s), or the leader's connection closing (50 ms)
        -> pre-votes: would you vote for me in the next term?        nothing has changed yet
        -> a majority would: a candidate in the next term (the library's part from here on)
        -> none, or not elected: asked again a little later

Of two that ask at once, the one with the shorter log (of equal ones, the lower id) stands back: it
would vote for the other, and for a moment does not ask itself. So one is elected, not none.

A peer would vote when the log is no shorter than its own and it has no leader itself: not one that
it has heard lately on a connection that still stands. So a voter that was cut off, or whose
connection to the leader alone has closed, changes nothing when it comes back: its term has not
moved, and the leader's followers refuse. Without pre-votes (the library has none) it would return
with a later term each time and take the leader down. Source: Raft thesis, 9.6.
"""

import math
from random import Random

from metaquorum.raft.timings import RaftTimings


class Election:
    """Deadlines and pre-votes of one voter; times are its monotonic clock's."""

    def __init__(
        self,
        node_id: int,
        voters: tuple[int, ...],
        timings: RaftTimings,
        random: Random,
        now: float,
    ) -> None:
        self._node_id = node_id
        self._majority = len(voters) // 2 + 1
        self._timings = timings
        self._random = random
        self._connected: set[int] = set()
        self._would_vote: set[int] = set()
        self._heard_at = -math.inf
        # Whoever starts knows of no leader, and asking does no harm.
        self.deadline = -math.inf if self._majority == 1 else self._soon(now)

    @property
    def can_win(self) -> bool:
        """Whether a majority can be asked at all."""
        return len(self._connected) + 1 >= self._majority

    def connected(self, voter_id: int, now: float, leader_id: int | None) -> None:
        self._connected.add(voter_id)
        if leader_id is None and len(self._connected) + 1 == self._majority:
            self._at_most(now + self._random.uniform(0, self._timings.evidence_max_s))

    def disconnected(self, voter_id: int, now: float, leader_id: int | None) -> None:
        self._connected.discard(voter_id)
        self._would_vote.discard(voter_id)
        if voter_id == leader_id:
            self._at_most(now + self._random.uniform(0, self._timings.evidence_max_s))

    def has_leader(self, leader_id: int | None, now: float) -> bool:
        """Whether there is no reason to doubt that a leader is at work."""
        if leader_id == self._node_id:
            return True
        return leader_id in self._connected and now < self._heard_at + self._timings.election_min_s

    def heard_leader(self, now: float) -> None:
        self._heard_at = now
        self.postpone(now)

    def postpone(self, now: float) -> None:
        """A leader lives, or is being made: silence begins anew."""
        self._would_vote.clear()
        timings = self._timings
        self.deadline = now + self._random.uniform(timings.election_min_s, timings.election_max_s)

    def ask(self, now: float) -> bool:
        """A round of pre-votes begins; whether this voter's own is enough."""
        self._would_vote = {self._node_id}
        self.deadline = self._soon(now)
        return self._is_candidate(now)

    @property
    def is_asking(self) -> bool:
        return self._node_id in self._would_vote

    def yield_to_candidate(self, now: float) -> None:
        """This voter said that it would vote for another."""
        self._would_vote.clear()
        self.deadline = max(self.deadline, self._soon(now))

    def agreed(self, voter_id: int, now: float) -> bool:
        """That peer would vote for this one; whether a majority would, now."""
        if not self.is_asking:
            return False
        self._would_vote.add(voter_id)
        return self._is_candidate(now)

    def _is_candidate(self, now: float) -> bool:
        if len(self._would_vote) < self._majority:
            return False
        self._would_vote.clear()
        timings = self._timings
        self.deadline = now + self._random.uniform(timings.vote_min_s, timings.vote_max_s)
        return True

    def _at_most(self, deadline: float) -> None:
        self.deadline = min(self.deadline, deadline)

    def _soon(self, now: float) -> float:
        return now + self._random.uniform(self._timings.retry_min_s, self._timings.retry_max_s)
