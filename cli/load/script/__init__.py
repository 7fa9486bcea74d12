"""Script for spark-submit, which accepts only files whose name ends with `.py`.

Imports `metaquorum.cli.load.main`. I/O: that of `mq-load`. It has a folder of its own, because
Python first looks for modules in the folder of the script.
"""
