"""One function for each API: (worker, request, message) to the response message.

Imports `worker` and below; nothing but the worker's start imports it. No I/O but through the
partitions, the controller client and the clock of the worker. Start with `dispatcher` (from a frame
to its handler); a module has a family of APIs.
"""
