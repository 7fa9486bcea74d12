"""How long a voter waits for what."""

from wire.primitives.frozen import frozen


@frozen
class RaftTimings:
    """All in seconds. Each default says what it is a compromise between.

    Elections begin on evidence (the connection to the leader has closed) or, where there is none,
    on silence. Silence is ambiguous: two busy cores keep a healthy leader quiet for some hundred
    milliseconds, so what waits for it is generous; evidence is not, so what follows it is quick.
    """

    # Ten messages a second and peer, which is what an idle quorum costs.
    heartbeat_s: float = 0.1
    # Of silence, before a follower asks for an election: several heartbeats and a slow fsync.
    election_min_s: float = 0.5
    election_max_s: float = 1.0
    # From the leader's connection closing to asking. Spread, so that one is usually first.
    evidence_max_s: float = 0.05
    # From one asking to the next, which costs a few bytes.
    retry_min_s: float = 0.1
    retry_max_s: float = 0.3
    # For a candidate to be elected: two fsyncs and a round trip. Spread, so that ties end.
    vote_min_s: float = 0.25
    vote_max_s: float = 0.5
    # A leader that no majority answers for so long leads no more. Not below `election_min_s`: it
    # would give up before anybody else could be elected.
    fallback_s: float = 1.0
    # How long a proposer is kept waiting for what becomes of its batch after the leader is gone.
    outcome_s: float = 2.0
    # Until a snapshot that could not be taken in is sent again.
    snapshot_retry_s: float = 1.0
