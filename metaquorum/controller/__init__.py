"""The active controller: requests in, decisions, records proposed to the metadata log.

Imports `metaquorum.metadata`, `security`, `config` and below; never `raft`. No I/O. Rules are plain
functions from an image to a `Decision` (`topics`, `leader_selection`, `alter_partition`,
`replica_placement`, ...); `controller` and `proposer` run them. Start with `controller`.
"""
