"""The APIs by which clients authenticate, and by which credentials and ACLs are administered.

Imports `network`, `worker` and below. No I/O but through the controller client of the worker. Apart
from the other handlers so that their folder stays small.
"""
