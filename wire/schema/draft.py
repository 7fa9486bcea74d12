"""Print the table of a protocol message from its JSON definition.

`python -m metaquorum.wire.schema.draft FILE`

A tool for adding an API: its output is a draft for a file in `wire/messages/`, which is reviewed
and is the source of truth from then on.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from metaquorum.wire.schema.message import Versions

_CALLS = {"bool": "boolean", "bytes": "blob"}
_TYPES = {
    "bool": "bool",
    "float64": "float",
    "string": "str",
    "uuid": "Uuid",
    "bytes": "bytes",
    "records": "Buffer",
}


def snake_case(name: str) -> str:
    """Return Kafka's CamelCase name in snake case: `isr_nodes` for `IsrNodes`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def draft(definition: dict[str, Any]) -> str:
    """Return the Python source of the message's classes, innermost first."""
    classes: list[str] = []
    served = Versions.parse(definition["validVersions"])
    if definition.get("latestVersionUnstable"):
        served = Versions(served.first, served.last - 1)
    pending = {common["name"]: common["fields"] for common in definition.get("commonStructs", ())}
    bases = (
        f'Message, api={definition.get("apiKey", -1)}, versions="{served.first}-{served.last}", '
        f'flexible="{definition["flexibleVersions"]}"'
    )
    _draft_class(definition["name"], bases, definition["fields"], served, classes, pending)
    return "\n\n\n".join(classes)


def _draft_class(
    name: str,
    bases: str,
    fields: list[dict[str, Any]],
    served: Versions,
    classes: list[str],
    pending: dict[str, list[dict[str, Any]]],
) -> None:
    """Append the class after the classes that it refers to.

    `pending` are the common structs that are not written yet.
    """
    lines = [f"class {name}({bases}):"]
    for field in fields:
        versions = Versions.parse(field["versions"])
        if versions.last < served.first or versions.first > served.last:
            continue
        item = field["type"].removeprefix("[]")
        nested = field.get("fields") or pending.pop(item, None)
        if nested:
            _draft_class(item, "Struct", nested, served, classes, pending)
        lines.append(_draft_field(field, item, served))
    classes.append("\n".join(lines if len(lines) > 1 else [*lines, "    pass"]))


def _draft_field(field: dict[str, Any], item: str, served: Versions) -> str:
    is_array = field["type"].startswith("[]")
    is_struct = item[0].isupper()
    item_type = _TYPES.get(item, item if is_struct else "int")
    arguments = []
    if is_array or is_struct:
        arguments.append(item if is_struct else _CALLS.get(item, item))
    versions = Versions.parse(field["versions"])
    if versions.first > served.first or versions.last < served.last:
        arguments.append(f'"{field["versions"]}"')
    nullable = "nullableVersions" in field
    absent = is_struct and not is_array and "tag" in field
    if nullable:
        arguments.append(f'nullable="{field["nullableVersions"]}"')
    default = _draft_default(field, item, is_array=is_array or is_struct)
    if default and not (is_struct and not is_array) and item != "records":
        arguments.append(f"default={default}")
    if "tag" in field:
        arguments.append(f"tag={field['tag']}")
    if field.get("ignorable"):
        arguments.append("ignorable=True")
    call = "array" if is_array else "struct" if is_struct else _CALLS.get(item, item)
    hint = f"list[{item_type}]" if is_array else item_type
    optional = " | None" if nullable or absent or default == "None" else ""
    hint += optional
    return f"    {snake_case(field['name'])}: {hint} = {call}({', '.join(arguments)})"


def _draft_default(field: dict[str, Any], item: str, *, is_array: bool) -> str:
    text = field.get("default")
    if text is None or text == "":
        return ""
    if text == "null":
        return "None"
    if is_array:
        return ""
    if item == "string":
        return repr(text)
    if item == "bool":
        return "True" if str(text) == "true" else ""
    value = int(str(text), 0)
    return str(value) if value else ""


def main() -> None:
    for path in sys.argv[1:]:
        text = re.sub(r"^\s*//.*$", "", Path(path).read_text(), flags=re.MULTILINE)
        print(draft(json.loads(text)), end="\n\n\n")


if __name__ == "__main__":
    main()
