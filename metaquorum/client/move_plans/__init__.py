"""Plans of moves that a metaquorum cluster carries out: start, watch, change and explain them.

`admin` asks the cluster, `explanation` has the sentences, and `blocking` needs no event loop. Only
metaquorum serves these requests. `measuring` reads what a planner needs, from any cluster.

Imports `metaquorum.moves` and the rest of `metaquorum.client`. No I/O but through the client.
"""
