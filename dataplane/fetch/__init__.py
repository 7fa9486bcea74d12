"""Fetch sessions (KIP-227) on both sides, long polls, and preferred read replicas (KIP-392).

Imports `network`, `partition` and below. No I/O. `sessions` is the leader's side, `session_client`
the follower's; `parked_polls` bounds the memory of long polls.
"""
