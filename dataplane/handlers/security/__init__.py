"""Handlers of the security APIs: authentication, SCRAM credentials and ACLs.

Imports `network`, `worker` and below. No I/O, except through the controller client of the worker.
Separate from the other handlers to keep that folder small.
"""
