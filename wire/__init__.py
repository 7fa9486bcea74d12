"""The Kafka protocol and record batches as data: bytes in, values out.

Imports nothing of ours; every other package may import it. No I/O, no clock, no event loop.
Packages, each of which imports those before it: `primitives`, `records`, `schema`, `messages`,
`protocol`. Start with `protocol.apis` (what is served) and `schema.message` (how a message is
written down).
"""
