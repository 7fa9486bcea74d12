"""The replicated log over several voters."""
