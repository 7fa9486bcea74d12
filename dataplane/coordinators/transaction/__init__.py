"""Transactions: producer ids and epochs of transactional ids, and the state of each transaction.

May import wire and `dataplane.coordinators.shard`; plain state, no I/O. `configs` has the configs
in force.
"""
