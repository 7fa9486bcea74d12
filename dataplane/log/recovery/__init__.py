"""Recovery of a partition log after a clean stop, a crash or a loss of power.

Imports `log.segments`. Disk I/O through the `Disk` interface only. Start with `recovery`, which
has the rules; `boot_markers` distinguish a killed process from a loss of power.
"""
