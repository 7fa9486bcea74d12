"""State shared by the handlers: worker context, metadata cache, leadership checks, producer ids.

Imports `replication` and below. No I/O of its own. Start with `context`, then `capabilities`, the
narrower types through which handlers use the context.
"""
