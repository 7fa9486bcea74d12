"""Client quotas (KIP-13, KIP-124, KIP-219, KIP-599, KIP-612): rates, CPU time, mutes.

Imports nothing else of `dataplane`. No I/O except the clock. Start with `client_quota_manager`;
`rate_window` computes the rate and the throttle time of a quota, `client_state` holds the quota
state of a connection, `cpu_meter` measures request time, `muting` keeps a throttled connection
muted.
"""
