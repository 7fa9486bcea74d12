"""The Kafka protocol and our own node-to-node frames, as data: bytes in, values out. No I/O."""
