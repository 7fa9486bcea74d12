"""Effective configs on this worker: dynamic worker configs (`worker`) and topic configs (`topic`).

Imports `log` for its config type. No I/O.
"""
