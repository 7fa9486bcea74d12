"""Log directories (JBOD): which partition is where, checkpoints, and directories that fail.

Imports `log.compaction` and below. Disk I/O through the `Disk` interface only. Start with
`log_dirs` (all of a worker) and `log_dir` (one).
"""
