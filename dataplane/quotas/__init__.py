"""Client quotas (KIP-13, KIP-124, KIP-219, KIP-599, KIP-612): rates, CPU time, mutes.

Imports nothing else of `dataplane`. No I/O but the clock. Start with `client_quota_manager`;
`rate_window` is the arithmetic of a quota, `client_state` what is kept for each connection,
`cpu_meter` measures request time, `muting` is how a throttled connection waits.
"""
