"""Consumer groups: a consumer that joins one, and administration (lag, reset, deletion).

    group_consumer        polls, commits, rebalances: all I/O of a member but its heartbeats
      group_member        plain state: what to send next, and what each answer means
      assignors           plain functions: the partitions of each member
      assigned_partitions plain state: positions, fetched records, pauses
      subscribed_topics   names, patterns, and the numbers of partitions
      coordinator_link    requests to the coordinator whose answers may take long
      heartbeats          the next heartbeat, and the state shared with its task or thread
    admin                 asks coordinators about groups, and commits for groups without members
    explanation           why a group does not consume

`trio_consumer` and `blocking` open a consumer. Imports the modules of `metaquorum.client` and
below. Network I/O through `Cluster` only; `consumer_protocol`, `values` and the planning
in `reset` are plain. Start with `group_member` (the rules of a member), or with `admin`.
"""
