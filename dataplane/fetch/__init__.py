"""Fetch: what one reads, its sessions (KIP-227) on both sides, long polls, near replicas (KIP-392).

Imports `network`, `partition` and below. No I/O but reads of the log in `reader`. `sessions` is the
leader's side, `session_client` the follower's; `long_polls` holds fetches open, and `parked_polls`
bounds their memory.
"""
