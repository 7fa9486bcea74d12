"""The APIs of quotas: alter, describe, and explain what is used.

Imports `quotas`, `worker` and below. No I/O. Apart from the other handlers so that their folder
stays small.
"""
