"""Storage of the metadata log: journal, snapshots, and the data directory of a node.

Imports `metaquorum.metadata`, `security` and below. Disk I/O through the `Disk` interface only.
Start with `journal` (append and recovery) and `data_dir` (files of a node).
"""
