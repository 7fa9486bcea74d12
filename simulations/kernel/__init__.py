"""Simulated machines (time, processes, network, disk) and worlds made from a seed.

Imports no other package of `simulations`, and shipped code only for the interfaces it simulates.
No I/O. Start with `world`; `mutation` plants a mutant, `comparing` is the base of every checker.
"""
