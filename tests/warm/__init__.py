"""Programs forked from a process that has imported them: a start costs a tenth of its CPU time.

`process` asks for them, in the process of the tests; `server` is the warm process, one for each
program: nodes, and members of groups with the Python clients. Tests of the start itself execute
`mq-server` instead, and so do the fixtures `node` and `peer`, which most tests use.
"""
