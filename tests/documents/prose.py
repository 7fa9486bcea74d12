"""Extract the prose of a file: docstrings, comments, messages and documents.

`python -m tests.documents.prose PATH...` prints what `tests.documents.banned_words` finds in these
files and folders.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["docstring", "comment", "string", "document"]

_CODE = re.compile(r"``.+?``|`[^`]*`|https?://\S+", re.DOTALL)
_FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
_PRAGMA = re.compile(r"#\s*(type: ignore|noqa|pragma:|fmt:|!|isort:|mypy:|cython:)")


@dataclass(frozen=True)
class Prose:
    """One docstring, comment, message or paragraph, and where it begins.

    `text` is without code in backticks and without links. `of` says what a docstring documents.
    """

    path: Path
    line: int
    kind: Kind
    text: str
    of: Literal["module", "class", "function", "property", "test", ""] = ""
    indented: bool = False  # a diagram or a table: only words are checked


def prose_of(path: Path) -> Iterator[Prose]:
    """Yield the prose of a Python, Cython, Markdown, TOML, shell or make file."""
    if path.suffix == ".py":
        yield from _of_python(path, path.read_text())
    elif path.suffix == ".md":
        yield from _of_markdown(path, path.read_text())
    elif path.suffix in {".toml", ".pxd", ".yaml"} or path.name == "Makefile" or _is_script(path):
        yield from _of_hash_comments(path, path.read_text())


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(11) == b"#!/bin/bash"


def _without_code(text: str) -> str:
    return _CODE.sub("CODE", text)


def _of_python(path: Path, source: str) -> Iterator[Prose]:
    nodes = list(ast.walk(ast.parse(source)))
    docstrings: set[int] = set()
    for node in nodes:
        if not isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) or not ast.get_docstring(node):
            continue
        constant = node.body[0].value  # type: ignore[attr-defined]
        docstrings.add(id(constant))
        text = ast.get_docstring(node) or ""
        yield Prose(path, constant.lineno, "docstring", _without_code(text), _documented(node))
    yield from _strings(path, nodes, docstrings)
    yield from _comments(path, source)


def _documented(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> Literal["module", "class", "function", "property", "test"]:
    if isinstance(node, ast.Module):
        return "module"
    if isinstance(node, ast.ClassDef):
        return "class"
    decorators = {ast.unparse(one) for one in node.decorator_list}
    if node.name.startswith("test_"):
        return "test"
    if any(re.search(r"\b(property|cached_property|setter)$", one) for one in decorators):
        return "property"
    return "function"


def _strings(path: Path, nodes: list[ast.AST], docstrings: set[int]) -> Iterator[Prose]:
    """Yield string literals of three words and more: messages, help texts, tables."""
    within: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [
                str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values
            ]
            within |= {id(one) for one in ast.walk(node)}
            text = "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docstrings or id(node) in within:
                continue
            text = node.value
        else:
            continue
        if len(text.split()) >= 3 and re.search("[a-z]", text):
            yield Prose(path, node.lineno, "string", _without_code(text))


def _comments(path: Path, source: str) -> Iterator[Prose]:
    begun: int | None = None
    lines: list[str] = []
    last = -2
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _PRAGMA.match(token.string):
            continue
        own_line = token.line.strip().startswith("#")
        if lines and begun is not None and not (own_line and token.start[0] == last + 1):
            yield Prose(path, begun, "comment", _without_code("\n".join(lines)))
            lines = []
        if not lines:
            begun = token.start[0]
        lines.append(token.string.lstrip("#: "))
        last = token.start[0]
    if lines and begun is not None:
        yield Prose(path, begun, "comment", _without_code("\n".join(lines)))


def _of_markdown(path: Path, text: str) -> Iterator[Prose]:
    text = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        if paragraph.strip():
            yield Prose(path, line, "document", _without_code(paragraph))
        line += paragraph.count("\n")


def _of_hash_comments(path: Path, text: str) -> Iterator[Prose]:
    begun, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        match = re.search(r"(^|\s)#+ (.*)$", line)
        if lines and (match is None or line.lstrip()[0] != "#"):
            yield Prose(path, begun, "comment", _without_code("\n".join(lines)))
            lines = []
        if match is not None:
            begun = begun if lines else number
            lines.append(match[2])


def main() -> None:
    from tests.documents.banned_words import findings

    paths: list[Path] = []
    for name in sys.argv[1:] or ["."]:
        path = Path(name)
        paths += [path] if path.is_file() else sorted(one for one in path.rglob("*"))
    count = 0
    for path in paths:
        if not path.is_file() or any(part.startswith(".") for part in path.parts):
            continue
        for prose in prose_of(path):
            for finding in findings(prose):
                count += 1
                print(finding)
    print(f"{count} findings")


if __name__ == "__main__":
    main()
