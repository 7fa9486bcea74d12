"""Why a group does not consume: the facts, and what they mean in sentences.

    activity     the members and the last rebalance, as the coordinator describes them
    unread       records that follow the committed offsets
    facts        gathers both, and what workers report of quotas and of throttled members
    sentences    plain functions: the facts as sentences

Imports the modules of `metaquorum.client.groups` and below. Network I/O through `Cluster` only;
`sentences` and `words` are plain. Start with `sentences`.
"""
