"""The files of one partition log: segments, indexes, leader epochs, producer state.

Imports no other package of `dataplane`. Disk I/O through the `Disk` interface only; blocking calls
are marked as such, and callers make them in a worker thread. Start with `segment` (one segment),
`segment_list` (the segments of a log in order) and `files` (how log files are opened and read).
"""
