"""Planning of moves of partitions between workers: which replicas move, and how long it takes.

Imports `metadata` and below. No I/O, no clock, no randomness: the same input gives the same plan.
Start with `plan` (a plan and its file); `balance` chooses the targets, and `estimate` says how long
they take and which throttle is possible.
"""
