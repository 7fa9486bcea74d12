"""The APIs that workers serve, from `metaquorum.wire.protocol.apis`."""

from metaquorum.wire.protocol.apis import APIS, FIRST_OWN_KEY
from tests.documents.reference.markdown import table


def page() -> str:
    rows = [
        (
            str(int(api.key)),
            f"{api.name}",
            f"{api.min_version} to {api.max_version}",
            "none" if api.flexible_from > api.max_version else f"from {api.flexible_from}",
            ", ".join(api.permissions) or "-",
        )
        for api in APIS.values()
    ]
    heads = ("Key", "API", "Versions served", "Flexible versions", "ACLs")
    kafka = [row for row in rows if int(row[0]) < FIRST_OWN_KEY]
    own = [row for row in rows if int(row[0]) >= FIRST_OWN_KEY]
    return f"""# APIs and versions

A worker announces exactly these in its response to ApiVersions, and serves every version in the
range. A request for another API, or for another version, is answered with UNSUPPORTED_VERSION where
the protocol allows an answer; otherwise its connection is closed and the log names the API.
Flexible versions have tagged fields and compact lengths (KIP-482). ACLs are not checked yet: the
last column has the permissions that a later version will require, where they are decided.

## APIs of Kafka

{table(heads, kafka)}
## APIs of metaquorum

Kafka has no such APIs. Their keys begin at {FIRST_OWN_KEY}, so that Kafka's clients ignore them;
`mq-admin` uses them where a cluster announces them.

{table(heads, own)}"""
