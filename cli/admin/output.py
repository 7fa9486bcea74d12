"""What commands print: tables for people, JSON and YAML for machines.

Commands give plain data. People see the columns that a command names; machines get all of it, under
the same names in every version.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import click

from metaquorum.one_line import UNSAFE

Row: TypeAlias = dict[str, Any]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Column(NamedTuple):
    """A column for people: its title and how a value reads (None: as `plain` says)."""

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
    """Without characters that a terminal would obey."""
    return UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def size_text(size_bytes: int) -> str:
    """For people: 1536 is 1.5 KiB; -1 (not told) is a dash."""
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
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        click.echo("\n".join(yaml_lines(data)))


def show_pairs(pairs: Iterable[tuple[str, Any]], indent: str = "") -> None:
    lines = [(title, plain(value)) for title, value in pairs]
    width = max(len(title) for title, _ in lines)
    for title, value in lines:
        click.echo(f"{indent}{title:<{width}}  {value}")


def show_table(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    """A drawn table on a terminal; elsewhere aligned words, for grep and awk."""
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


# YAML: blocks of scalars that JSON could have written. It is all that data of ours needs.


def yaml_lines(data: Any, indent: str = "") -> list[str]:
    if isinstance(data, dict) and data:
        lines = []
        for key, value in data.items():
            lines += _yaml_entry(f"{indent}{_yaml_key(key)}:", value, indent)
        return lines
    if isinstance(data, list) and data:
        lines = []
        for item in data:
            if isinstance(item, dict | list) and item:
                nested = yaml_lines(item, indent + "  ")
                lines += [f"{indent}- {nested[0].lstrip()}", *nested[1:]]
            else:
                lines.append(f"{indent}- {_yaml_scalar(item)}")
        return lines
    return [f"{indent}{_yaml_scalar(data)}"]


def _yaml_entry(start: str, value: Any, indent: str) -> list[str]:
    if isinstance(value, dict | list) and value:
        return [start, *yaml_lines(value, indent + "  ")]
    return [f"{start} {_yaml_scalar(value)}"]


def _yaml_key(key: str) -> str:
    simple = re.fullmatch(r"[a-z][a-z_.-]*", key) and key not in (
        "null",
        "true",
        "false",
        "yes",
        "no",
        "on",
        "off",
        "y",
        "n",
    )
    return key if simple else _yaml_scalar(key)


def _yaml_scalar(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(
        r"[\x7f-\x9f\ud800-\udfff\u2028\u2029\ufeff\ufffe\uffff]",
        lambda found: f"\\u{ord(found[0]):04x}",
        text,
    )
