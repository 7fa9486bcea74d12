"""Nodes forked from a process that has imported the server: a start costs a fourth of its CPU time.

`process` asks for nodes, in the process of the tests; `server` is the warm process. Tests of the
start itself execute `mq-server` instead, and so do the nodes that the tests of a process share.
"""
