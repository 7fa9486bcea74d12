"""Storage of tables: a local folder, or a prefix of an object store.

Imports `metaquorum.spark.loader.errors`, and fsspec in `object_storage` only. I/O: files and
objects, blocking. Start with `interface`, which lists the requirements and the supported stores.
"""
