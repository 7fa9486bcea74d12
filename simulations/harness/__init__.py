"""The shipped node and Kafka clients on simulated machines, and the type of scenarios.

Imports `kernel`. No I/O. Start with `environment` (one node, its clients, its checkers) and
`history` (records that clients sent and read).
"""
