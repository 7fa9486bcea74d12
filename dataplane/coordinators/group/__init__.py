"""Consumer groups: members, generations and committed offsets.

May import wire and the modules of `metaquorum.dataplane.coordinators`, not `transaction`; plain
state, no I/O. Start at `classic_group` for the state machine of one group, at `group_shard` for the
operations of all APIs. `record_formats` has Kafka's records of `__consumer_offsets`,
`committed_offsets` the offsets in them.
"""
