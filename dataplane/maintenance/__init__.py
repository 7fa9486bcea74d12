"""Background tasks of a worker: retention, flushes, checkpoints, log cleaning.

Imports `worker` and below; only the start of the worker imports this package. Disk I/O through
`log` only. Start with `background_tasks`.
"""
