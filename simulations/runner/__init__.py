"""Many seeds in many processes: totals, shrinking, reports, CI.

Imports `scenarios`, `mutants` and below; only `python -m metaquorum.simulations` imports it. I/O:
processes, files and the terminal. Start with `batch`.
"""
