"""The active controller: turns requests into decisions and proposes their metadata records.

Imports `metaquorum.metadata`, `security`, `config` and below; never `raft`. No I/O. The rules are
pure functions from an image to a `Decision` (`topics`, `leaders`, `replica_placement`, ...);
`controller` and `proposer` run them. Start with `controller`.
"""
