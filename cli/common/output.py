"""Output of commands: tables for a terminal, JSON and YAML for programs.

Commands produce plain data. A table shows the columns that the command selects; JSON and YAML
contain all data, with the same names in every version.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

import click

from metaquorum.runtime.one_line import UNSAFE, json_escaped

Row: TypeAlias = dict[str, Any]

_NEVER_FOLDED: Final = 1 << 30  # characters per line
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Column(NamedTuple):
    """Column of a table: its title, and the function from a value to text (None: `plain`)."""

    key: str
    title: str = ""
    text: Callable[[Any], str] | None = None

    @property
    def heading(self) -> str:
        return self.title or self.key.replace("_", " ")

    def cell(self, row: Row) -> str:
        value = row.get(self.key)
        return plain(value) if self.text is None or value is None else printable(self.text(value))


def plain(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(plain(item) for item in value) or "-"
    return printable(str(value))


def printable(text: str) -> str:
    """Escape the characters that a terminal would interpret."""
    return UNSAFE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else _wide_escape(found)


def _wide_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def echo_exact(text: str, *, nl: bool = True) -> None:
    """Print text for programs as it is; on a terminal, with escapes as `printable`."""
    if sys.stdout.isatty():
        text = "\n".join(map(printable, text.split("\n")))
    click.echo(text, nl=nl, color=True)  # otherwise click removes escape sequences


def size_text(size_bytes: int) -> str:
    """Return a readable size: "1.5 KiB" for 1536, a dash for -1 (unknown)."""
    if size_bytes < 0:
        return "-"
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size_bytes} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def show_rows(output: str, rows: Sequence[Row], columns: Sequence[Column]) -> None:
    if output == "text":
        show_table(rows, columns)
    else:
        show_data(output, list(rows))


def show_data(output: str, data: Any) -> None:
    if output == "json":
        click.echo(json_text(data))
    else:
        click.echo(yaml_text(data), nl=False)


def json_text(data: Any) -> str:
    """Return JSON in which characters that a terminal would interpret are escaped."""
    lines = json.dumps(data, indent=2, ensure_ascii=False).split("\n")
    return "\n".join(map(json_escaped, lines))


def json_line(data: Any) -> str:
    """Return `json_text` on one line."""
    return json_escaped(json.dumps(data, ensure_ascii=False))


def show_pairs(pairs: Iterable[tuple[str, Any]], indent: str = "") -> None:
    lines = [(title, plain(value)) for title, value in pairs]
    width = max(len(title) for title, _ in lines)
    for title, value in lines:
        click.echo(f"{indent}{title:<{width}}  {value}")


def show_table(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    """Print a drawn table on a terminal; otherwise aligned columns, for grep and awk."""
    cells = [[column.cell(row) for column in columns] for row in rows]
    right = [
        all(isinstance(row.get(column.key), int | float) for row in rows) for column in columns
    ]
    if sys.stdout.isatty():
        _draw(columns, cells, right)
        return
    lines = [[column.heading.upper().replace(" ", "-") for column in columns], *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        aligned = [
            word.rjust(width) if to_right else word.ljust(width)
            for word, width, to_right in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(aligned).rstrip())


def _draw(columns: Sequence[Column], cells: list[list[str]], right: list[bool]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for column, to_right in zip(columns, right, strict=True):
        table.add_column(column.heading, justify="right" if to_right else "left", overflow="fold")
    for line in cells:
        table.add_row(*[Text(word) for word in line])
    Console(highlight=False).print(table)


def yaml_text(data: Any) -> str:
    """Return `data` as YAML in block style and in its order: strings quoted, keys plain.

    Characters that a terminal would interpret are escaped; a key with one of them is quoted, too.
    """
    import yaml

    text: str = yaml.dump(
        data,
        Dumper=_yaml_dumper(),
        allow_unicode=True,
        default_flow_style=False,
        sort_keys=False,
        width=_NEVER_FOLDED,
    )
    # libyaml writes marks of directions as they are. They are in quoted strings only.
    return "\n".join(UNSAFE.sub(_wide_escape, line) for line in text.split("\n"))


@cache
def _yaml_dumper() -> Any:
    import yaml

    # The dumper of libyaml is 20 times faster, if PyYAML was built with libyaml.
    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

        def represent_mapping(self, *arguments: Any, **options: Any) -> yaml.MappingNode:
            node: yaml.MappingNode = super().represent_mapping(*arguments, **options)
            for key, _ in node.value:
                if not UNSAFE.search(key.value):
                    key.style = None
            return node

    def quoted(dumper: Any, text: str) -> yaml.ScalarNode:
        """Quote a string, so that every YAML parser reads it as a string, not a number or date."""
        valid = text.encode("utf-8", "replace").decode()  # YAML has no lone surrogates
        node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", valid, style='"')
        return node

    Dumper.add_representer(str, quoted)
    return Dumper
