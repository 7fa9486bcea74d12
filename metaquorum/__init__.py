"""A Kafka-compatible event log: protocol, metadata quorum, worker, client, commands, simulator.

Has no code of its own; its packages do not import it, and each may import those before it:
`wire`, `runtime`, `config`, `security`, `metadata`, `client` and `quorum`, `spark`, `dataplane`,
`cli` and `simulations`. I/O only through the interfaces of `metaquorum.runtime`. Start with
docs/ARCHITECTURE.md, or with `metadata.image` for what a cluster knows.
"""
