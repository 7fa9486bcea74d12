"""Entry point that Spark looks for: installed as the top-level package `pyspark_metaquorum`.

Spark imports all packages named `pyspark_*` and takes their `DefaultSource`. Imports the source
and nothing else; no I/O. The class stays in its own module, because Spark pickles it by name.
"""

from metaquorum.spark.source import DefaultSource as DefaultSource
