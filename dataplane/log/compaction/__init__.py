"""Log compaction: the records that a compacted log keeps, and the replacement of its segments.

Imports `log.partition_log` and below. Start with `compaction`, the rules and the filter, without
I/O; `cleaning` writes and replaces files in a worker thread.
"""
