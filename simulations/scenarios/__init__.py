"""The table of scenarios, and what a run of each must have met.

Imports all scenarios. No I/O. `registry` has the table; `gates` says how many seeds CI plays, and
which events must not be missing.
"""
