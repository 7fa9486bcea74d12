"""Consumer groups for administration: description, lag, reset and deletion of offsets.

The client is a member of no group here; it asks the coordinators of groups about them and commits
offsets for groups without members.

Imports the modules of `metaquorum.client` and below. Network I/O through `Cluster` only;
`consumer_protocol`, `values`, `explanation` and the planning in `reset` are plain. Start with
`admin` (all operations) and `values` (their results).
"""
