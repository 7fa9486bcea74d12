"""Moves of partitions by Kafka's tools and other clients."""
