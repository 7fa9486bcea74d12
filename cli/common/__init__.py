"""Common parts of the programs: settings and login, usage errors, logs, processes, output formats.

Imports `metaquorum` and `wire`, and no other package of `cli`. I/O: the terminal, processes, and
the profiles file. `lazy_group` imports the module of a command when the command is used.
"""
