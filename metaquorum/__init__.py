"""The metadata quorum: replicated metadata log, controller, metadata image, and client library.

Imports `wire`; may be imported by `dataplane`, `cli` and `simulations`. I/O only through the
interfaces of `metaquorum.runtime`. Packages, each of which may import those before it: `runtime`,
`config`, `security`, `metadata`, `storage`, `controller` and `raft`, `channel`, `rpc` and `client`.
The two packages of a pair do not import each other. Start with `controller_server`, which assembles
the controller of a node, or with `metadata.image` for the data.
"""
