"""Scenarios of several machines: voters and whole nodes, and faults of machines and network.

Imports `harness` and `kernel`. No I/O. `quorum_scenario`, `cluster_scenario` and `rebuilt_voter`
are scenarios; start reading at `cluster_state`.
"""
