"""What a node asks of the quorum's controllers, and how they answer.

Imports `metaquorum.channel`, `controller` and below. Network I/O through `channel` only. Start with
`methods` (the table of calls); `controller_client` asks, `service` answers, `follower` fetches the
metadata log.
"""
