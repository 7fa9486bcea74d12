"""Deterministic simulation: whole nodes in one process, virtual time, simulated network and disk.

Imports all packages but `cli`; only tests import it. No I/O but reports: disks, networks and
clocks are simulated. Packages, each of which may import those before it: `kernel`, `harness`,
`checkers`, `workloads`, `faults`, `single_node`, `cluster`, `replication`, `mutants`, `scenarios`,
`runner`. Start with docs/explanation/simulation.md and `kernel.world`: a world is one run, and
its seed determines every event in it.
"""
