"""Error codes of the Kafka protocol, from `metaquorum.wire.primitives.errors`, and which of them
are sent."""

import re
from functools import cache

from metaquorum.wire.primitives.errors import RETRIABLE, ErrorCode
from tests.documents.reference.markdown import table
from tests.nodes import ROOT


@cache
def _codes_in_use() -> frozenset[str]:
    found: set[str] = set()
    for top in ("wire", "metaquorum", "dataplane"):
        for path in (ROOT / top).rglob("*.py"):
            if path.name == "errors.py" and path.parent.name == "primitives":
                continue
            if "client" in path.parts or "spark" in path.parts:
                continue
            found |= set(re.findall(r"\bErrorCode\.([A-Z_]+)", path.read_text()))
    return frozenset(found)


def page() -> str:
    rows = [
        (
            str(int(one)),
            one.name,
            "yes" if one in RETRIABLE else "no",
            "yes" if one.name in _codes_in_use() else "no",
        )
        for one in sorted(ErrorCode)
    ]
    return f"""# Error codes

All error codes of the Kafka protocol. *Retriable*: clients retry, after they have refreshed
their metadata where that may help. *Used here*: a worker or a controller of this version sends the
code; the others belong to features that it does not have.

{table(("Code", "Name", "Retriable", "Used here"), rows)}"""
