"""Transactions: producer ids and epochs of transactional ids, and the state of each transaction.

May import wire and the modules of `metaquorum.dataplane.coordinators`, not `group`; no I/O, except
that `marker_sender` asks other workers. Start at `transaction` for the states of one transactional
id, at `transaction_shard` for the operations of all APIs. `record_formats` has Kafka's records of
`__transaction_state`, `configs` the configs in force.
"""
