"""What a node asks of the quorum's controllers, and how they answer."""
