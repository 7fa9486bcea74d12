"""Log lines above INFO and the errors with a message, found in the syntax trees of the code."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.documents.reference.markdown import code, table
from tests.nodes import ROOT, module_name

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


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _log_lines(module: str, tree: ast.Module) -> Iterator[Message]:
    for function in ast.walk(tree):
        if not isinstance(function, _Function):
            continue
        for call in _calls(function):
            match call:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=logger), attr=method),
                    args=[first, *values],
                ) if logger in _LOGGERS and method in {*_LEVELS, "log"}:
                    level = _LEVELS.get(method)
                    if method == "log":  # the level is an argument, too
                        level = _level_in(first)
                        first, *values = values
                    text = _template(first)
                    assert text is not None, f"{module}: a log line that is not a literal"
                    yield from _composed(module, tree, function, call, level, text, values)


def _composed(
    module: str,
    tree: ast.Module,
    function: _Function,
    call: ast.Call,
    level: str | None,
    text: str,
    values: list[ast.expr],
) -> Iterator[Message]:
    """Yield one line; or, if callers or other statements make its sentence, one line for each."""
    parameters = [one.arg for one in function.args.args if one.arg != "self"]
    sentence, found = "", list[tuple[int, str | None, str]]()
    for value in values:
        match value:
            case (
                ast.Name(id=name) | ast.Call(func=ast.Name(id="one_line"), args=[ast.Name(id=name)])
            ) if name in parameters and (level is None or text == "%s"):
                sentence, found = name, [*_passed(tree, function, parameters, name)]
            case ast.Name(id=name) if text == "%s":
                sentence = name
                found = [(call.lineno, None, one) for one in _assigned(function, name)]
            case ast.Call(func=ast.Attribute(attr=name)) if text == "%s":
                sentence = _name(value)
                found = [(call.lineno, None, one) for one in _returned(tree, name)]
    line = _filled(text, values)
    if not found and level is not None:
        yield Message(module, call.lineno, level, line)
    for number, passed_level, one in found:
        one_level = level or passed_level
        if one_level is not None:
            yield Message(module, number, one_level, line.replace(f"{{{sentence}}}", one))


def _passed(
    tree: ast.Module, function: _Function, parameters: list[str], name: str
) -> Iterator[tuple[int, str | None, str]]:
    """Yield line, level and text of each call of `function` that passes a sentence as `name`."""
    for caller in ast.walk(tree):
        if not isinstance(caller, _Function):
            continue
        for call in _calls(caller):
            called = call.func.attr if isinstance(call.func, ast.Attribute) else _name(call.func)
            if called != function.name or len(call.args) < len(parameters):
                continue
            arguments = dict(zip(parameters, call.args, strict=False))
            level = next(filter(None, map(_level_in, call.args)), None)
            argument = arguments[name]
            texts = [_template(argument)]
            if isinstance(argument, ast.Name):
                texts = [*_assigned(caller, argument.id)]
            for text in texts or [f"{{{_name(argument)}}}"]:
                yield call.lineno, level, text or f"{{{_name(argument)}}}"


def _level_in(argument: ast.expr) -> str | None:
    """Return the level above INFO that an expression names."""
    shown = ast.unparse(argument)
    return next((text for text in _LEVELS.values() if f"logging.{text}" in shown), None)


def _assigned(function: _Function, name: str) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                if (text := _template(value)) is not None:
                    yield text


def _returned(tree: ast.Module, name: str) -> Iterator[str]:
    for function in ast.walk(tree):
        if isinstance(function, _Function) and function.name == name:
            for node in ast.walk(function):
                value = node.value if isinstance(node, ast.Return) else None
                if value is not None and (text := _template(value)) is not None:
                    yield text


def _calls(function: _Function) -> Iterator[ast.Call]:
    """Yield the calls in a function, without those in functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, _Function):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting += ast.iter_child_nodes(node)


def _of_module(path: Path) -> Iterator[Message]:
    module = module_name(path)
    tree = ast.parse(path.read_text())
    yield from _log_lines(module, tree)
    for node in ast.walk(tree):
        match node:
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

Every log line above INFO, and the errors that carry a message. Names in braces are values. Log
lines and the output of commands quote errors after the name of the thing that failed. A message
says what happens next, or what to do if something has to be done; [Recover from
failures](../howto/recover-from-failures.md) has the steps. Codes in capitals are error codes that a
client receives, with the message if the API has a field for it.

## Log lines

{table(heads, ((one.kind, code(one.text), code(one.module)) for one in lines))}
## Errors
"""
    for package, found in packages.items():
        rows = ((code(one.kind), code(one.text), code(one.module)) for one in found)
        text += f"\n### {package}\n\n{table(('Error', 'Message', 'Module'), rows)}"
    return text
