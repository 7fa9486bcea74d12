"""Log compaction: which records a compacted log keeps, and how cleaned segments replace others.

Imports `log.partition_log` and below. `compaction` is the plain filter, without I/O; `cleaning`
writes and swaps files in a worker thread.
"""
