"""Where a table lies: a local folder, or a prefix of an object store.

Imports `metaquorum.spark.loader.errors`, and fsspec in `object_storage` only. I/O: files and
objects. `interface` says what is asked of a store, and which will do.
"""
