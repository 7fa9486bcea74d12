"""Zip file of the modules that executors need, for Spark's --py-files: pure Python, interpreted.

Its content follows from the imports of the data source and of the loader: the modules of
metaquorum that they reach, and all of `metaquorum.wire`, whose messages are imported by name.
pyarrow and the codecs of compressed topics must be installed on the executors.
"""

from __future__ import annotations

import ast
import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import metaquorum
from metaquorum.spark.loader.errors import OutputError

# Spark puts the zip before installed packages in sys.path, on the driver, too: the zip must have
# all modules of metaquorum that `mq-load` itself imports.
_ROOTS: Final = ("metaquorum.spark", "metaquorum.runtime.one_line", "metaquorum.wire")
_DISCOVERY: Final = "metaquorum.spark.discovery"
_DISCOVERED_AS: Final = "pyspark_metaquorum"
# Imported only in functions that no executor calls, and that need an event loop.
_NEVER: Final = ("metaquorum.client.trio_transport", "metaquorum.runtime.system")
# For a reproducible zip, each file has the earliest time that the format allows.
_NO_TIME: Final = (1980, 1, 1, 0, 0, 0)


def write_bundle(path: str) -> list[str]:
    """Write the zip and return the names in it. Raises OutputError if it cannot be written."""
    files = dict(sorted(bundled_files()))
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name, source in files.items():
                info = zipfile.ZipInfo(name, _NO_TIME)
                info.compress_type = zipfile.ZIP_DEFLATED
                bundle.writestr(info, source)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
    return list(files)


def bundled_files() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file in the zip."""
    modules = dict(_modules("metaquorum", Path(str(metaquorum.__file__)).parent))
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


def _modules(top: str, folder: Path) -> Iterator[tuple[str, Path]]:
    # Links are followed: in a checkout some packages are links (docs/decisions/062-one-name.md).
    for parent, _folders, names in os.walk(folder, followlinks=True):
        for path in (Path(parent, name) for name in names if name.endswith(".py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join((top, *(parts[:-1] if parts[-1] == "__init__" else parts))), path


def _closure(modules: dict[str, Path]) -> set[str]:
    waiting = [name for name in modules if _is_below(name, _ROOTS)]
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
    """Yield the imported modules, including imports in functions and for type checking only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            yield node.module
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in names if name in modules)
