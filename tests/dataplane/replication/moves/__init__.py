"""Partitions that move to other workers: what the workers do with their replicas."""
