"""Plans of moves that a metaquorum cluster carries out: start, watch, change and explain them.

`admin` asks the cluster, `explanation` has the sentences, and `blocking` needs no event loop. Only
metaquorum serves these requests.
"""
