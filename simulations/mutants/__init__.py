"""Mutants: bugs planted into the shipped code, to show that the checkers find them.

Imports `kernel`, `cluster` and shipped code; only `runner` and `python -m metaquorum.simulations`
import it. No I/O. `registry` lists all; each other module has the mutants of one part of the
product.
"""
