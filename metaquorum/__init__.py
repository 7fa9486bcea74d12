"""The quorum: replicated metadata log, controller, metadata image; and the client library.

Imports `wire`; may be imported by `dataplane`, `cli` and `simulations`. I/O only through the
interfaces of `metaquorum.runtime`. Packages, each of which may import those before it: `runtime`,
`config`, `security`, `metadata`, `storage`, `controller` beside `raft`, `channel`, `rpc` beside
`client`; of those side by side neither imports the other. `controller_server` puts the controller
of a node together: start there for the whole, or with `metadata.image` for the data.
"""
