"""Config definitions, their scopes and defaults, and how the layers of values resolve.

Imports `metaquorum.runtime` and `metaquorum.wire.primitives` only. No I/O. `registry` lists every
config; `definition` defines the type of a config; `topic`, `worker` and `listener` hold the tables;
`resolution` finds the value in force.
"""
