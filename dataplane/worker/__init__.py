"""What handlers share: worker context, metadata cache, leadership checks, producer ids.

Imports `replication` and below. No I/O of its own. Start with `context`, and `capabilities`,
which says what of it handlers may touch.
"""
