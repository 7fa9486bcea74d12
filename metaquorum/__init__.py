"""The quorum: replicated metadata log, controller, metadata image, and the seams to the machine."""
