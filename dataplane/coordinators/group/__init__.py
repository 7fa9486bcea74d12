"""Consumer groups: members, generations and rebalances.

May import wire and `dataplane.coordinators.shard`; plain state, no I/O. Start at `classic_group`
for the state machine of one group; `membership` has its members, `requests` the plain values that
go in and out, `group_metadata` what is stored of a group, `rebalance_history` why it rebalanced.
"""
