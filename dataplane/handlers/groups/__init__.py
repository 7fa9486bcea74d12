"""Handlers of the group APIs: members, committed offsets, administration, FindCoordinator.

They translate requests for `metaquorum.dataplane.coordinators.group`, and its answers. May import
`coordinators`, `worker` and below. No I/O, except through the controller client of the worker, to
create `__consumer_offsets`.
"""
