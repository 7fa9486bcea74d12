"""Faults of one node: kills, power cuts, and faults of disks and clocks.

Imports `workloads` and below. No I/O. `node_faults` has faults of processes, `device_faults` those
of disks and clocks. Start reading at `node_faults`.
"""
