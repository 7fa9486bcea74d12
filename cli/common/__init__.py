"""What the programs share: settings and login, usage errors, logs, processes, forms of output.

Imports `metaquorum` and `wire`, nothing else of `cli`. I/O: the terminal, processes, and the
file of profiles. `lazy_group` imports the module of a command when it is asked for.
"""
