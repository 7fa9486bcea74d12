"""A worker: listeners, partition logs, and the APIs that clients call."""
