"""One partition replica: its log, its leader state, and the checks before an append.

Imports `config`, `log`, `instruments` and below. Disk I/O through `log` only. Start with
`partition`; `leader_state` computes the high watermark; `batch_validation` checks what producers
send.
"""
