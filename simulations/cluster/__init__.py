"""Several machines: voters, whole nodes, what befalls them and the network between them.

Imports `harness` and `kernel`. No I/O. `quorum_scenario`, `cluster_scenario` and `rebuilt_voter`
are scenarios; start with `cluster_state`.
"""
