"""Handlers of transactions: requests to the coordinator, and markers that end transactions.

They translate requests for `metaquorum.dataplane.coordinators.transaction` and
`metaquorum.dataplane.worker`. May import `coordinators`, `worker` and below. No I/O of their own.
Start with `markers`.
"""
