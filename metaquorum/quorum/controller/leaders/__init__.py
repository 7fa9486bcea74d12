"""Leaders of partitions: which replicas are eligible, elections, and changes of the ISR.

Imports `metaquorum.quorum.controller.decision` and the metadata image; no I/O. Start with
`leader_selection`, the rules that all elections follow.
"""
