"""Scenarios with one node: how a run goes, narrow worlds, and quotas.

Imports `faults` and below. No I/O, but `snapback` as a program, which draws a picture. Start with
`run`.
"""
