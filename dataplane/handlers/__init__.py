"""Request handlers, one function per API: from (worker, request, message) to the response message.

Imports `worker` and below; only the startup code of the worker imports it. I/O goes through the
partitions, the controller client and the clock of the worker; the type of a handler's parameter
`worker` lists what the handler may use (`metaquorum.dataplane.worker.capabilities`). Start with
`dispatcher` (from a frame to its handler); each other module has a family of APIs.
"""
