"""The files of one partition log: segments, indexes, leader epochs, producer state.

Imports nothing else of `dataplane`. Disk I/O through the `Disk` interface only; what may block runs
in a worker thread. `segment_list` holds the segments in order; `files` is how a log file is opened
and read.
"""
