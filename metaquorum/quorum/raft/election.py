"""Election timeouts and pre-votes of a voter that does not lead.

    no leader message for 0.5 to 1 s, or 0 to 50 ms after the leader's connection closed
        -> pre-vote: asks for votes in the next term, without a change of state
        -> granted by a majority: candidate in the next term (the library's part from here on)
        -> not granted, or not elected: retries after a short time

If two voters ask at the same time, the one with the shorter log (with equal logs, the lower id)
yields: it grants the other's pre-vote and does not ask for a short time. So the votes do not split.

A voter grants a pre-vote if the sender's log is at least as up-to-date as its own, and it has no
leader: no recent leader message on a connection that is still open. So a voter that was
partitioned, or that lost only its connection to the leader, does not disturb the quorum when it
returns: its term is unchanged, and the leader's followers refuse. Without pre-votes (the library
has none) it would return with a later term each time and depose the leader. Source: Raft thesis,
9.6.
"""

import math
from random import Random

from metaquorum.quorum.raft.timings import RaftTimings


class Election:
    """Election deadlines and pre-votes of one voter; times are monotonic seconds."""

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
        # A voter that starts knows no leader, and a pre-vote does no harm.
        self.deadline = -math.inf if self._majority == 1 else self._soon(now)

    @property
    def can_win(self) -> bool:
        """Whether a majority of the voters is connected."""
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
        """Return whether the voter leads, or is connected to a leader with recent messages."""
        if leader_id == self._node_id:
            return True
        return leader_id in self._connected and now < self._heard_at + self._timings.election_min_s

    def heard_leader(self, now: float) -> None:
        self._heard_at = now
        self.postpone(now)

    def postpone(self, now: float) -> None:
        """Restart the election timeout, because a leader is alive or is being elected."""
        self._would_vote.clear()
        timings = self._timings
        self.deadline = now + self._random.uniform(timings.election_min_s, timings.election_max_s)

    def ask(self, now: float) -> bool:
        """Begin a round of pre-votes; return whether this voter's own pre-vote is a majority."""
        self._would_vote = {self._node_id}
        self.deadline = self._soon(now)
        return self._is_candidate(now)

    @property
    def is_asking(self) -> bool:
        return self._node_id in self._would_vote

    def yield_to_candidate(self, now: float) -> None:
        """Stop asking for a short time, because this voter granted another's pre-vote."""
        self._would_vote.clear()
        self.deadline = max(self.deadline, self._soon(now))

    def agreed(self, voter_id: int, now: float) -> bool:
        """Count a granted pre-vote; return whether a majority has granted it now."""
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
