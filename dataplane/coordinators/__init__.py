"""Coordinators: state of groups and of transactions that follows a replicated log of records.

`shard` defines the state of one partition of an internal topic, and what an operation on it
returns; `runtime` keeps the shards that this worker leads and writes their records; `group` and
`transaction`, which do not import each other, have the two coordinators. May import `replication`
and below; the worker has the coordinators, and handlers use them. The state is plain: no I/O.
"""
