"""A zip of what executors need, for Spark's --py-files: pure Python, interpreted.

What is in it follows from the imports of the data source and of the loader: the modules of
metaquorum that they reach, and `wire`, whose messages are imported by name. pyarrow and the codecs
of compressed topics must be installed where the executors run.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import metaquorum
import wire
from metaquorum.spark.loader.errors import OutputError

# Spark puts the zip before all that is installed, on the driver, too: what `mq-load` itself imports
# of metaquorum has to be in it.
_ROOTS: Final = ("metaquorum.spark", "metaquorum.runtime.one_line")
_DISCOVERY: Final = "metaquorum.spark.discovery"
_DISCOVERED_AS: Final = "pyspark_metaquorum"
# Imported in functions that no executor calls: they need an event loop.
_NEVER: Final = ("metaquorum.client.trio_transport", "metaquorum.runtime.system")
# The same bytes each time: the time of each file is the earliest that a zip can have.
_NO_TIME: Final = (1980, 1, 1, 0, 0, 0)


def write_bundle(path: str) -> list[str]:
    """The names in the zip, which is there. OutputError."""
    files = dict(sorted(bundled_files()))
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name, source in files.items():
                info = zipfile.ZipInfo(name, _NO_TIME)
                info.compress_type = zipfile.ZIP_DEFLATED
                bundle.writestr(info, source)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from None
    return list(files)


def bundled_files() -> Iterator[tuple[str, bytes]]:
    """Names in the zip, and what is in each."""
    tops = {"metaquorum": _folder_of(metaquorum), "wire": _folder_of(wire)}
    modules = {name: path for top, folder in tops.items() for name, path in _modules(top, folder)}
    needed = _closure(modules)
    for name in needed:
        path = modules[name]
        parts = name.replace(".", "/")
        yield (
            f"{parts}/__init__.py" if path.name == "__init__.py" else f"{parts}.py",
            path.read_bytes(),
        )
    if _DISCOVERY in modules:
        yield f"{_DISCOVERED_AS}/__init__.py", modules[_DISCOVERY].read_bytes()


def _folder_of(package: object) -> Path:
    return Path(str(getattr(package, "__file__", ""))).parent


def _modules(top: str, folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        yield ".".join((top, *(parts[:-1] if parts[-1] == "__init__" else parts))), path


def _closure(modules: dict[str, Path]) -> set[str]:
    waiting = [
        name for name in modules if name.partition(".")[0] == "wire" or _is_below(name, _ROOTS)
    ]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in found or name in _NEVER:
            continue
        found.add(name)
        parts = name.split(".")
        waiting += [".".join(parts[:count]) for count in range(1, len(parts))]
        waiting += _imports(ast.parse(modules[name].read_bytes()), modules)
    return found


def _is_below(name: str, roots: Iterable[str]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def _imports(tree: ast.AST, modules: dict[str, Path]) -> Iterator[str]:
    """Also those in functions, and those for types only, which do no harm."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            yield node.module
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in names if name in modules)
