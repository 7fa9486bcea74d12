"""Requests and responses as bytes on a connection: frames, headers, supported APIs.

Imports all other packages of `wire`. No I/O. Start with `apis` (the table of APIs and versions) and
`frames`; `produce_one` is the fast codec of the most common produce request, and `request_form`
chooses its compiled or interpreted form.
"""
