"""The simulated machine: time, processes, network, disk; and worlds made from a seed.

Imports nothing else of `simulations`; shipped code only for what it simulates. No I/O. Start with
`world`; `mutation` is how a planted mistake is swapped in, `comparing` what every checker is.
"""
