"""The quorum: a Raft log of metadata, its controller, and how workers speak with it.

Imports `metaquorum.metadata` and what is below it; only `metaquorum.dataplane`, `metaquorum.cli`
and `metaquorum.simulations` import it. I/O through the interfaces of `metaquorum.runtime`. Start
with `controller_server`, which puts one controller together.
"""
