"""Plans of moves that a metaquorum cluster carries out: start, watch, change and explain them.

Imports the rest of `metaquorum.client`, `metaquorum.metadata.moves` and below. I/O: the network, by
requests that only metaquorum serves. Start with `admin`; `explanation` has the sentences, as pure
functions.
"""
