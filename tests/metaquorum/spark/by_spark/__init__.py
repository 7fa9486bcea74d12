"""Tests that share one Spark session: all in one process (tests/suite/scheduling.py)."""
