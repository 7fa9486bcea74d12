"""Whole nodes in one process, in virtual time, on simulated networks and disks; checkers."""
