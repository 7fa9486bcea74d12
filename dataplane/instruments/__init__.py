"""Histograms, error counts and rate limits of log lines, for use by any module.

Imports `scheduling`. No I/O. `metaquorum.dataplane.prometheus` decides which of their values are
exported.
"""
