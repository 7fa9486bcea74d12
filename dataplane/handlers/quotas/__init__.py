"""Handlers of the quota APIs: alter and describe quotas, describe their use.

Imports `quotas`, `worker` and below. No I/O, except through the controller client of the worker.
Separate from the other handlers to keep that folder small.
"""
