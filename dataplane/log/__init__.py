"""Partition logs on disk, in Kafka's file layout.

Imports no other package of `dataplane`. Disk I/O through the `Disk` interface only. Packages and
modules, each of which may import those before it: `segments`, `recovery`, `local_log`,
`partition_log`, `compaction`, `dirs`, `retention`. Start with `partition_log`, the log of one
partition.
"""
