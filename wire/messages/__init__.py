"""Tables of requests and responses: one module per API, with all versions.

Imports `metaquorum.wire.schema` and `metaquorum.wire.primitives`. No I/O.
`metaquorum.wire.protocol.apis` imports a module at the first use of its API, so a program loads
only the tables that it needs.
"""
