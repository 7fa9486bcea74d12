"""Plans of moves: their rules (`move_plans`), and the task that takes their steps (`execution`).

Imports the rules of moves and the proposer; the controller imports this. No I/O besides the
metadata log.
"""
