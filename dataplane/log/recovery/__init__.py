"""Opening a partition log after any end of the process: scan, truncate, rebuild.

Imports `log.segments`. Disk I/O through the `Disk` interface only. `recovery` has the rules;
`boot_markers` distinguish a killed process from a lost machine.
"""
