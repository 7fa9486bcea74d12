"""Time slices of the event loop and memory for requests, so that no client blocks others.

Imports only the messages of `wire`, to free them. No I/O. `time_slices` divides long work into
slices of CPU time; `request_memory` is the budget for request bytes.
"""
