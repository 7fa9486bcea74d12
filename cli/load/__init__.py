"""mq-load: offset ranges of topics into Parquet files, restartable.

Imports `cli.common` and `metaquorum.spark`. I/O: the terminal; all else through
`metaquorum.spark.loader`. Start with `main` (the table of commands).
"""
