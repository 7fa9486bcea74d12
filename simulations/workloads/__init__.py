"""Clients of one node: producers, consumers, administrators, and hostile ones.

Imports `checkers`, `harness` and `kernel`. No I/O. Replicated clusters reuse some of their parts.
"""
