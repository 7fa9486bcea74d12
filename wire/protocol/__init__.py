"""Requests and responses as bytes on a connection: frames, headers, and which APIs are served.

Imports all other packages of `wire`. No I/O. Start with `apis` (the table of APIs and versions) and
`frames`; `produce_one` is the fast form of the commonest produce request.
"""
