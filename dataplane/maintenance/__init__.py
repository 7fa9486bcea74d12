"""Background tasks: retention, flushes, checkpoints, log cleaning.

Imports `worker` and below; nothing imports it but the worker's start. Disk I/O through `log` only.
Start with `background_tasks`.
"""
