"""The shipped node and Kafka clients on simulated machines, and what a scenario is.

Imports `kernel`. No I/O. Start with `environment` (one node, its clients, its checkers) and
`history` (what clients did and saw).
"""
