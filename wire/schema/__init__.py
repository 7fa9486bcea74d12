"""Message tables, and the encoders and decoders generated from them.

Imports `metaquorum.wire.primitives`. No I/O. Start with `message` (how a table is declared); other
packages call `codec`; `draft` prints a table from Kafka's JSON definition of a message.
"""
