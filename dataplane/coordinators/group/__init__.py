"""The group coordinator: consumer groups and their committed offsets in `__consumer_offsets`.

Imports `coordinators` and below. No I/O. Start with `committed_offsets`, the committed offsets of
one partition; `offset_retention` decides when they expire, `record_formats` has Kafka's formats of
the records.
"""
