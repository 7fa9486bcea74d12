"""Partition logs on disk, laid out as Kafka's."""
