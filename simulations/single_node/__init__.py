"""Scenarios with one node: the course of a run, narrow worlds, and quotas.

Imports `faults` and below. No I/O, except `snapback` as a program, which writes a picture. Start
reading at `run`.
"""
