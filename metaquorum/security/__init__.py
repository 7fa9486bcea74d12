"""Authentication: SASL mechanisms, SCRAM credentials, TLS, names in certificates.

Imports `metaquorum.runtime`. `scram`, `sasl` and `distinguished_name` do no I/O; `tls_context`,
`private_files` and `decoy_key` do: they read and write files. `tls_connection` runs TLS over a
`Connection`.
"""
