"""One partition replica: log, leader state, and the validation of produced batches.

Imports `config`, `log`, `instruments` and below. Disk I/O through `log` only. Start with
`partition`; `leader_state` computes the high watermark; `batch_validation` checks produced batches.
"""
