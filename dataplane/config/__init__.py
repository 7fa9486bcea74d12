"""Configs in force on this worker: dynamic worker configs and per-topic configs.

Imports `log` for its config type. No I/O.
"""
