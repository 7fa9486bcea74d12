"""Partition logs on disk, laid out as Kafka's.

Imports nothing else of `dataplane`. Disk I/O through the `Disk` interface only. Packages and
modules, each of which may import those before it: `segments`, `recovery`, `local_log`,
`partition_log`, `compaction`, `dirs`, `retention`. Start with `partition_log` (one log, as
partitions see it).
"""
