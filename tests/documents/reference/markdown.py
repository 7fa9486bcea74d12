"""Markdown that GitHub and Sphinx render alike."""

import re
from collections.abc import Iterable, Sequence


def code(text: object) -> str:
    """Return inline code. A vertical bar is escaped, as it would end a cell of a table."""
    marks = "``" if "`" in str(text) else "`"
    text = f" {text} " if "`" in str(text) else str(text)
    return f"{marks}{' '.join(text.split(' ')).replace('|', chr(92) + '|')}{marks}"


def prose(text: str) -> str:
    """Return text for a cell of a table: what Markdown or HTML would take as markup is escaped."""
    text = " ".join(text.split())
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part.replace("|", r"\|")
        if part.startswith("`")
        else re.sub(r"([|<>*_\[\]#$\\])", r"\\\1", part)
        for part in parts
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Cells hold Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
