"""Slices of the event loop and memory for requests: no client holds up others.

Imports nothing of ours. No I/O. `time_slices` divides long work into slices of CPU time;
`request_memory` is the budget for request bytes.
"""
