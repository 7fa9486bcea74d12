"""One function for each API: (worker, request, message) to the response message.

Imports `worker` and below; nothing but the worker's start imports it. No I/O but through the
partitions, the controller client and the clock of the worker; the type of a handler's parameter
`worker` lists what that handler may touch (`dataplane.worker.capabilities`). Start with
`dispatcher` (from a frame to its handler); a module has a family of APIs.
"""
