"""Config definitions, their scopes and defaults, and how the layers of values resolve.

Imports `metaquorum.runtime` at most. No I/O. `registry` lists every key; `definition` says what a
key is; `topic`, `worker` and `listener` define them; `resolution` finds the value in force.
"""
