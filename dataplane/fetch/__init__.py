"""Fetch requests: reading, fetch sessions (KIP-227), long polls, rack-aware reads (KIP-392).

Imports `network`, `partition` and below. No I/O except reads of the log in `reader`. Start with
`sessions`, the leader's side; `session_client` is the follower's side. `long_polls` keeps waiting
fetches, and `parked_polls` bounds their memory. `throttled_reads` omits partitions (KIP-73).
"""
