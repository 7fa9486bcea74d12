"""Client connections: listeners, TLS and SASL, request pipelines, connection limits.

Imports `partition`, `quotas` and below; knows no API but those of authentication. Network I/O
through the `Network` interface. Start with `server` (accepting) and `connection` (one client):
`pipeline` is its plain state, `response_sender` its way out.
"""
