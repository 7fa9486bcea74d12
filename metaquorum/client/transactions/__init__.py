"""Transactions: a producer whose records and offsets take effect together, and administration.

    transactional_producer  all I/O of a producer: KIP-98, KIP-447, KIP-890
      transaction_state     plain state: what is permitted next, and what each error means
      errors                errors of a producer, by what the program can do next
    admin                   lists, descriptions, hanging transactions, abortion (KIP-664)
      stall_facts           facts about a partition whose last stable offset does not advance
      stall_explanation     plain functions: the facts as sentences

`blocking` has both without an event loop. Imports the modules of `metaquorum.client` and below.
Network I/O through `Cluster` only. Start with `transaction_state`, or with `admin`.
"""
