"""Coordinators: state of clients, such as consumer groups, kept as records of an internal topic.

Imports `worker` and below; handlers import this package. The rules are plain state without I/O:
an operation decides on records, and the replay of committed records changes the state. Start with
`group`, the coordinator of consumer groups.
"""
