"""Log lines above INFO and the errors with a message, found in the syntax trees of the code."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.documents.reference.markdown import code, table
from tests.nodes import ROOT

_LEVELS = {"warning": "WARNING", "error": "ERROR", "exception": "ERROR", "critical": "CRITICAL"}
_LOGGERS = {"log", "logger"}
_PLACEHOLDER = re.compile(r"%(?:\((\w+)\))?[-+ #0]*\d*(?:\.\d+)?[sdrfgx]")
# Errors that no operator sees: a caller inside this program made a mistake, or handles them.
_INTERNAL = {"AssertionError", "NotImplementedError", "StopIteration", "AttributeError", "KeyError"}


@dataclass(frozen=True, order=True)
class Message:
    """`kind`: the level of a log line, or the class of an error; `text` with {names} in it."""

    module: str
    line: int
    kind: str
    text: str


def _name(node: ast.expr) -> str:
    """Return a short name for the expression whose value a message quotes."""
    match node:
        case ast.Name(id=name):
            return name.lstrip("_")
        case ast.Attribute(attr=name):
            return name.lstrip("_")
        case ast.Call(func=ast.Name(id="one_line" | "repr" | "str" | "len"), args=[first, *_]):
            return _name(first)
        case ast.Call(func=function):
            return _name(function)
        case ast.Subscript(value=value) | ast.Await(value=value) | ast.Starred(value=value):
            return _name(value)
        case ast.BinOp(left=left) | ast.FormattedValue(value=left):
            return _name(left)
        case ast.IfExp(body=body):
            return _name(body)
        case ast.BoolOp(values=[first, *_]):
            return _name(first)
    return "value"


def _template(node: ast.expr) -> str | None:
    """Return the text of a literal or an f-string; None for any other expression."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                one.value
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
                else f"{{{_name(one)}}}"
                for one in values
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = _template(left), _template(right)
            if texts == (None, None):
                return None
            return "".join(
                text if text is not None else f"{{{_name(one)}}}"
                for text, one in zip(texts, (left, right), strict=True)
            )
        case ast.IfExp(body=body, orelse=other):
            first, second = _template(body), _template(other)
            return f"{first} / {second}" if first and second else first or second
    return None


def _filled(template: str, values: Sequence[ast.expr]) -> str:
    """Return a %-template with {names} in place of its placeholders."""
    starred = len(_PLACEHOLDER.findall(template)) - len(values) + 1
    names: list[str] = []
    for value in values:
        if isinstance(value, ast.Starred):
            # A partition is a pair; other values are numbered.
            pair = ["topic", "partition"]
            names += pair if starred == 2 else [f"{_name(value)}{n}" for n in range(starred)]
        else:
            names.append(_name(value))

    def named(match: re.Match[str]) -> str:
        return f"{{{match[1] or (names.pop(0) if names else 'value')}}}"

    return _PLACEHOLDER.sub(named, template).replace("%%", "%")


def _of_module(path: Path) -> Iterator[Message]:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=logger), attr=method), args=[first, *values]
            ) if logger in _LOGGERS and method in _LEVELS:
                text = _template(first)
                assert text is not None, f"{path}:{node.lineno}: a log line that is not a literal"
                yield Message(module, node.lineno, _LEVELS[method], _filled(text, values))
            case ast.Raise(
                exc=ast.Call(func=ast.Name() | ast.Attribute() as error, args=arguments)
            ):
                kind = ast.unparse(error)
                if kind in _INTERNAL:
                    continue
                for argument in arguments:
                    if isinstance(argument, ast.Attribute) and "ErrorCode." in ast.unparse(
                        argument
                    ):
                        kind = argument.attr
                    text = _template(argument)
                    if text is not None and len(text.split()) >= 2:
                        yield Message(module, node.lineno, kind, text)
                        break


@cache
def messages() -> tuple[Message, ...]:
    """Return every message of the product, in the order of modules and lines."""
    found: list[Message] = []
    for top in ("wire", "metaquorum", "dataplane", "cli"):
        for path in sorted((ROOT / top).rglob("*.py")):
            found += _of_module(path)
    return tuple(sorted(found))


def has_words(text: str) -> bool:
    """Return whether the message says something by itself, and not only what it quotes."""
    return len(re.sub(r"\{\w+\}", "", text).split()) >= 2


def page() -> str:
    lines = [one for one in messages() if one.kind in _LEVELS.values()]
    errors = [one for one in messages() if one.kind not in _LEVELS.values()]
    packages: dict[str, list[Message]] = defaultdict(list)
    for one in errors:
        packages[".".join(one.module.split(".")[:2])].append(one)
    heads = ("Level", "Message", "Module")
    text = f"""# Messages

Every log line above INFO, and the errors that carry a message. Names in braces are values. A log
line or an error names the thing, the cause and what to do; an error that reaches a log line or a
terminal follows the name of what failed. Codes in capitals are error codes that a client receives,
with the message where the API has a field for it.

## Log lines

{table(heads, ((one.kind, code(one.text), code(one.module)) for one in lines))}
## Errors
"""
    for package, found in packages.items():
        rows = ((code(one.kind), code(one.text), code(one.module)) for one in found)
        text += f"\n### {package}\n\n{table(('Error', 'Message', 'Module'), rows)}"
    return text
