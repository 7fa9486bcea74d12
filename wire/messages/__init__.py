"""The tables of requests and responses: one module for each API, all versions in it.

Imports `wire.schema` and `wire.primitives`. No I/O. `wire.protocol.apis` imports a module when its
API is first used, so that a program loads only the tables it needs.
"""
