"""Fetch: slices of segment files, with long polls.

Imports `worker`, `fetch` and below. I/O: reads of logs, through the partitions. Start with
`handler`.

A response does not hold records, only their position in segment files: `connection` copies small
slices and sends large ones by sendfile. A fetch that finds less than `min_bytes` watches its
partitions and reads again when enough bytes have been appended, its wait time is over, or another
event happens to one of the partitions (`delayed_fetch`).

A request of many partitions is work in pieces (`metaquorum.dataplane.scheduling.time_slices`): it
watches each partition before it reads it, so that it misses no event between two pieces, and after
a wait it reads only the partitions with events again.
"""
