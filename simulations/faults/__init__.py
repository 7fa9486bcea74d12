"""What befalls one node: kills, losses of power, disks and clocks that do wrong.

Imports `workloads` and below. No I/O. `node_faults` has faults of processes, `device_faults` those
of disks and clocks.
"""
