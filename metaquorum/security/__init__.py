"""Authentication: SASL mechanisms, SCRAM credentials, TLS, distinguished names.

Imports `metaquorum.runtime`. `scram`, `sasl` and `distinguished_name` do no I/O; `tls_context`,
`private_files` and `decoy_key` read and write files. `tls_connection` runs TLS over a `Connection`.
Start with `sasl` and `tls_context`.
"""
