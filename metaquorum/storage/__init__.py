"""The metadata log on disk: journal, snapshots, and the data directory of a node.

Imports `metaquorum.metadata`, `security` and below. Disk I/O through the `Disk` interface only.
Start with `journal` (append and recovery) and `data_dir` (what a node's directory holds).
"""
