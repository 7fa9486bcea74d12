"""Log directories (JBOD): placement of partitions, checkpoints, and failures of directories.

Imports `log.compaction` and below. Disk I/O through the `Disk` interface only. Start with
`log_dirs` (all directories of a worker) and `log_dir` (one directory).
"""
