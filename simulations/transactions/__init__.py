"""Scenario `transactions`: transactional clients in simulated clusters, and checkers of T1-T6.

`partition_transactions` reads transactions off a true log; `transaction_history` has what the
clients did. Checkers compare both with what the clients see. May import `groups`, `replication` and
below; no I/O but the simulated one. Start with `transactions_scenario`.
"""
