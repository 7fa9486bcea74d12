"""The Kafka protocol and record batches as data: bytes in, values out.

Imports no other package of this project; all of them may import it. No I/O, no clock, no event
loop. Its packages, each of which may import those before it: `primitives`, `records`, `schema`,
`messages`, `protocol`. Start with `protocol.apis` (the table of supported APIs) and
`schema.message` (how a message is declared).
"""
