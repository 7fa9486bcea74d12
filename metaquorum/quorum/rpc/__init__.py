"""RPC between nodes and controllers: client, server and metadata fetches.

Imports `metaquorum.quorum.channel`, `controller` and below. Network I/O through `channel` only.
Start with `methods` (the table of calls); `controller_client` sends calls, `service` answers them,
`follower` fetches the metadata log.
"""
