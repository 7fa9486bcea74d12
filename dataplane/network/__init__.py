"""Client connections: listeners, TLS and SASL, request pipelines, connection limits.

Imports `partition`, `quotas` and below; the only APIs handled here are those of authentication.
Network I/O goes through the `Network` interface. Start with `server` (accepts connections) and
`connection` (serves one client; `pipeline` is its plain state, `response_sender` writes its
responses).
"""
