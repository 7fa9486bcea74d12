"""Records of the metadata log, from `metaquorum.metadata.records`."""

import inspect
from collections.abc import Callable
from typing import Any

from metaquorum.metadata import records
from tests.documents.reference.markdown import code, prose, table


def _kind(kind: Callable[[Any], Any]) -> str:
    """Return what a field holds, in words."""
    match kind:
        case records.Integer():
            return f"integer from {kind.least} to {kind.most}"
        case records.Text():
            return f"string of at most {kind.max_chars} characters"
        case records.OneOf():
            return "one of " + ", ".join(map(code, kind.texts))
        case records.Positive():
            return "number above 0"
        case records.Nullable():
            return f"{_kind(kind.kind)}; or nil"
        case records.Uuid():
            return "UUID, 16 bytes"
        case records.Data():
            return f"at most {kind.max_bytes} bytes"
        case records.Boolean():
            return "boolean"
        case records.Array():
            return f"array of at most {kind.max_items}: {_kind(kind.kind)}"
        case records.Struct():
            fields = getattr(kind.make, "_fields", ())
            named = zip(fields, kind.kinds, strict=True)
            return "(" + "; ".join(f"{code(name)}: {_kind(one)}" for name, one in named) + ")"
    raise AssertionError(f"a kind of field that this page does not know: {kind!r}")


def page() -> str:
    text = """# Metadata records

The metadata log consists of these records. In a file and between nodes a record is the msgpack
array `[id, version, field...]`, with the fields in the order of the table. An id is never
used again. A new version only adds fields at the end; a field that an older record does not have
takes its default. A controller writes a version only when the `metadata.version` of the
cluster is at least the level given, so that every node can read it. [File formats](file-formats.md)
says how the log is kept in files.
"""
    for schema in records.SCHEMAS:
        name = schema.record.__name__
        levels = ", ".join(f"version {v} from level {x}" for v, x in enumerate(schema.levels))
        features = "".join(f"; version {v} needs the feature {code(f)}" for v, f in schema.features)
        rows = [
            (
                code(field.name),
                _kind(field.kind),
                str(field.since),
                "-" if field.since == 0 else code(field.default),
            )
            for field in schema.fields
        ]
        paragraphs = inspect.cleandoc(schema.record.__doc__ or "").split("\n\n")
        text += f"\n## {schema.id}: {name}\n\n"
        text += "\n\n".join(prose(one) for one in paragraphs) + "\n\n"
        text += f"Written: {levels}{features}.\n\n"
        text += table(("Field", "Value", "Since version", "Default"), rows)
    return text
