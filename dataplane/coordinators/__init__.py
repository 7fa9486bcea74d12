"""Coordinators: state of groups that follows a replicated log of records.

`shard` defines the state of one partition of an internal topic, and what an operation on it
returns; `group` has the state of consumer groups. May import `replication`
and below; the worker has the coordinators, and handlers use them. The state is plain: no I/O.
"""
