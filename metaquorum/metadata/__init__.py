"""The records of the metadata log, the image that results from them, and the replay.

Imports `metaquorum.config` and below. No I/O: `replicated_log` only declares the interface of the
log. Start with `records` and `image`; `replay` applies records to an image, `loader` keeps a node's
image up to date.
"""
