"""What a node tells of itself, for Prometheus: names and meanings as Kafka's, where it has them."""
