"""The Raft log over several voters: the library pysyncobj behind a guard.

Imports `metaquorum.quorum.storage` and below; never `controller`. Disk I/O goes through `storage`;
the peers of `metaquorum.quorum.channel` send messages. Start with `voter` (the loop of one voter)
and `core` (the rules that make the library safe).
"""
