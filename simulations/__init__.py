"""Whole nodes in one process: virtual time, seeded scheduling, simulated network and disk."""
