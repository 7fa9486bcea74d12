"""Consumer groups: members, generations and committed offsets, as plain state without I/O.

Start with the state machine of one group, `classic_group`. `record_formats` has Kafka's records of
`__consumer_offsets`, `committed_offsets` the offsets that they hold.
"""
