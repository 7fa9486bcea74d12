"""The file that spark-submit runs: it takes none whose name does not end with `.py`.

Imports `cli.load.main`. I/O: that of `mq-load`. A folder of its own, since Python looks for modules
first where the file lies that it runs.
"""
