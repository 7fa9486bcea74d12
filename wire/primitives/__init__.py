"""Primitive wire types: varints, UUIDs, error codes.

Imports no other package of this project. No I/O. Start with `errors`: Kafka's error codes and the
exceptions that carry them.
"""
