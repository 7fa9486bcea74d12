"""What both programs need: usage errors, log output, processes, output as text, JSON or YAML.

Imports `metaquorum` and `wire`, nothing else of `cli`. I/O: the terminal and processes.
`lazy_group` imports the module of a command when it is asked for.
"""
