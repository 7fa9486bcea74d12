"""Timeouts of a voter."""

from metaquorum.wire.primitives.frozen import frozen


@frozen
class RaftTimings:
    """Timeouts in seconds, with the reason for each default.

    A follower asks for an election if the connection to the leader closes, or if the leader is
    silent. Silence is ambiguous, because two busy cores can delay a healthy leader for some hundred
    milliseconds; so its timeout is long. A closed connection is unambiguous, so its delay is short.
    """

    # Cost of an idle quorum: ten messages per second and peer.
    heartbeat_s: float = 0.1
    # Silence before a follower asks for an election: several heartbeats and a slow fsync.
    election_min_s: float = 0.5
    election_max_s: float = 1.0
    # Delay after the leader's connection closes. Random, so that one voter usually asks first.
    evidence_max_s: float = 0.05
    # Interval of pre-votes, which cost a few bytes.
    retry_min_s: float = 0.1
    retry_max_s: float = 0.3
    # Time for a candidate to be elected: two fsyncs and a round trip. Random, to resolve ties.
    vote_min_s: float = 0.25
    vote_max_s: float = 0.5
    # A leader resigns if no majority answers for this long. At least `election_min_s`: otherwise it
    # would resign before another voter could be elected.
    fallback_s: float = 1.0
    # Time after a loss of leadership until the outcome of an appended batch is reported as unknown.
    outcome_s: float = 2.0
    # Delay before a failed snapshot transfer restarts.
    snapshot_retry_s: float = 1.0
