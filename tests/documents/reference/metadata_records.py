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


def _versions(schema: records.Schema) -> str:
    """Return which version a controller writes: a sentence, or a table if there are several."""
    if schema.version == 0:
        return f"Version 0 only, from level {schema.levels[0]}.\n"
    rows = []
    for version, level in enumerate(schema.levels):
        features = [code(feature) for needed, feature in schema.features if needed == version]
        added = [code(field.name) for field in schema.fields if field.since == version]
        rows.append(
            (
                str(version),
                str(level),
                ", ".join(features) or "-",
                ", ".join(added) if version > 0 else "the others",
            )
        )
    return table(("Version", "From level", "Needs feature", "Adds fields"), rows)


def page() -> str:
    text = """# Metadata records

The metadata log consists of these records. In a file and between nodes a record is the msgpack
array `[id, version, field...]`, with the fields in the order of the table. An id is never
used again. A new version only adds fields at the end; a field that an older record does not have
takes its default.

A controller writes the newest version that the cluster allows: the cluster's level of the feature
`metadata.version` must be at least *From level* (0: any cluster), and the feature under *Needs
feature* must be enabled. So every node can read what is written. [File formats](file-formats.md)
describes the files of the log.
"""
    for schema in records.SCHEMAS:
        name = schema.record.__name__
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
        text += _versions(schema) + "\n"
        text += table(("Field", "Value", "Since version", "Default"), rows)
    return text
