"""Scenario of consumer groups: members, clients that break the protocol, and checkers.

Imports `replication` and below. No I/O. Start reading at `groups_scenario`; `group_log` follows the
records of `__consumer_offsets`, with which `group_checkers` compare the answers to clients.
"""
