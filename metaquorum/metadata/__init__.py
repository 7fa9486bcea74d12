"""The metadata log's records, the image they add up to, and its replay.

Imports `metaquorum.config` and below. No I/O but through the `ReplicatedLog` interface. Start with
`records` and `image`; `replay` folds one into the other, `loader` keeps an image up to date.
"""
