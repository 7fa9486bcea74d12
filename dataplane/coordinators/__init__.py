"""Coordinators: state of groups that follows a replicated log of records.

`shard` defines the state of one partition of an internal topic, and what an operation on it
returns; `group` has the state of consumer groups. May import what `dataplane.worker` may import,
and that package; handlers use it. The state is plain: no I/O.
"""
