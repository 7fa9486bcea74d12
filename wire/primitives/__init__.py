"""Wire types that have no structure: varints, UUIDs, error codes.

Imports nothing of ours. No I/O. `errors` has the table of Kafka's error codes and the exceptions
that carry them.
"""
