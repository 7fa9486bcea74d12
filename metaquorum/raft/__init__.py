"""The replicated log over several voters: pysyncobj behind a guard.

Imports `metaquorum.storage` and below; never `controller`. Disk I/O through `storage`; messages
leave through the peers that `metaquorum.channel` provides. Start with `voter` (one voter's loop)
and `core` (the rules that make the library safe).
"""
