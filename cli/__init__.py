"""The commands: mq-server runs nodes."""
