"""The table of scenarios, and the gates of each.

Imports all scenarios. No I/O. `registry` has the table; `gates` has the number of seeds that CI
plays, and the checkers that must have compared something.
"""
