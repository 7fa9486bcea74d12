"""mq-load: the command that loads offset ranges of topics into Parquet files, restartable.

Imports `metaquorum.cli.common` and `metaquorum.spark`. I/O: the terminal; files and network through
`metaquorum.spark.loader`. Start with `main` (the table of commands).
"""
