"""What must always hold of one node, one small class each, named by its invariant."""
