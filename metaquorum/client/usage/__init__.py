"""Use of quotas and of the memory of coordinators, by client.

Imports `metaquorum.client.cluster`, its errors, and below. I/O: the network, by requests that only
metaquorum serves. Start with `quota_use`.
"""
