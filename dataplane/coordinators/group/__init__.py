"""Consumer groups: members, generations and rebalances.

May import wire and `dataplane.coordinators.shard`; plain state, no I/O. Start at `classic_group`
for the requests of one group, at `group_state` for its states. `membership` has its members,
`requests` the plain values that go in and out, `group_metadata` the values that the log stores,
`rebalance_history` the causes of its rebalances.
"""
