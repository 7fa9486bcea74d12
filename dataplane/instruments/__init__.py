"""Histograms, error counts and limits on log lines, for any module to use.

Imports `scheduling`. No I/O. What is exported from them is decided in `dataplane.prometheus`.
"""
