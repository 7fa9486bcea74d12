"""The import graph: no cycles, few modules in a folder, contracts that fail when broken."""

import ast
import copy
import tomllib
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import grimp
import pytest
from importlinter.configuration import configure
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

from metaquorum.cli.admin.main import main as mq_admin
from metaquorum.cli.common.lazy_group import LazyGroup
from metaquorum.cli.load.main import main as mq_load
from metaquorum.cli.server.main import main as mq_server
from metaquorum.wire.protocol.apis import ApiKey
from tests.nodes import ROOT, module_name

TOPS = ("wire", "metaquorum", "dataplane", "cli", "simulations")
MOST_MODULES = 22
# Tables: one module for each API.
TABLES = {"wire/messages"}
Edges = dict[str, set[str]]


def modules() -> dict[str, Path]:
    found = {}
    for top in TOPS:
        for path in (ROOT / top).rglob("*.py"):
            found[module_name(path).removesuffix(".__init__")] = path
    return found


MODULES = modules()
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


def imported_by(tree: ast.AST, known: Collection[str]) -> set[str]:
    """Return imports at the top, in functions and for types only, and names of modules in strings.

    Such names are late imports (`importlib.import_module`). A module that a separate process runs
    (`own_command`) is not an import.
    """
    found = set()
    elsewhere = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "own_command"
        for argument in node.args
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else str(node.module))
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in elsewhere
        ):
            found.add(node.value.partition(":")[0])
    return {name for name in found if name in known and "." in name}


def late_commands() -> Iterable[tuple[str, str]]:
    """Return the modules of commands, which tables of commands name relative to their package."""
    for group in (mq_admin, mq_load, mq_server):
        assert isinstance(group, LazyGroup)
        with click.Context(group) as context:
            for name in group.list_commands(context):
                command = group.get_command(context, name)
                assert command is not None
                assert command.callback is not None
                owner = group.callback.__module__ if group.callback else ""
                yield owner, command.callback.__module__


def late_tables() -> Iterable[tuple[str, str]]:
    for key in ApiKey:
        yield "metaquorum.wire.protocol.apis", f"metaquorum.wire.messages.{key.name.lower()}"


def import_graph() -> Edges:
    edges = {
        name: imported_by(ast.parse(path.read_text()), MODULES) - {name}
        for name, path in MODULES.items()
    }
    for importer, imported in [*late_commands(), *late_tables()]:
        if imported != importer:
            assert imported in edges
            edges[importer].add(imported)
    return edges


def circles(edges: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return the import cycles: the strongly connected components (Tarjan) of several modules."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(edges.get(name, ())):
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in sorted(edges):
        if name not in order:
            visit(name)
    return found


def among_children(edges: Edges, package: str) -> Edges:
    """Return the imports among the direct children of `package`, each with all its modules."""
    depth = package.count(".") + 2
    found: Edges = {}
    for importer, all_imported in edges.items():
        for imported in all_imported:
            if all(name.startswith(f"{package}.") for name in (importer, imported)):
                a, b = (".".join(name.split(".")[:depth]) for name in (importer, imported))
                if a != b:
                    found.setdefault(a, set()).add(b)
    return found


@pytest.fixture(scope="module")
def edges() -> Edges:
    return import_graph()


def test_a_circle_is_found_however_it_is_imported() -> None:
    known = {"a.x", "a.y", "a.z"}
    late = "def f():\n    from a import y\n"
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.z import Z\n"
    named = "import importlib\nimportlib.import_module('a.x:main')\n"
    found = {
        name: imported_by(ast.parse(source), known)
        for name, source in (("a.x", late), ("a.y", types), ("a.z", named))
    }
    assert found == {"a.x": {"a.y"}, "a.y": {"a.z"}, "a.z": {"a.x"}}
    assert circles(found) == [["a.x", "a.y", "a.z"]]
    assert circles({"a.x": {"a.y"}, "a.y": set()}) == []


def test_commands_and_tables_that_are_imported_late_are_in_the_graph(edges: Edges) -> None:
    assert "metaquorum.cli.admin.quotas.commands" in edges["metaquorum.cli.admin.main"]
    assert "metaquorum.wire.messages.fetch" in edges["metaquorum.wire.protocol.apis"]
    assert (
        "metaquorum.wire.records.walk_form"
        in edges["metaquorum.dataplane.partition.batch_validation"]
    )


def test_no_modules_import_each_other(edges: Edges) -> None:
    assert circles(edges) == []


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_packages_import_each_other(edges: Edges, package: str) -> None:
    assert circles(among_children(edges, package)) == []


def test_a_circle_of_packages_is_found() -> None:
    edges = {"t.a.x": {"t.b.x"}, "t.b.y": {"t.c"}, "t.c": {"t.a.y"}}
    assert circles(edges) == []
    assert circles(among_children(edges, "t")) == [["t.a", "t.b", "t.c"]]


def test_a_folder_has_few_modules() -> None:
    counts: dict[str, int] = {}
    for top in (*TOPS, "tests"):
        for path in (ROOT / top).rglob("*.py"):
            if path.name != "__init__.py":
                folder = str(path.parent.relative_to(ROOT))
                counts[folder] = counts.get(folder, 0) + 1
    assert {f: n for f, n in counts.items() if n > MOST_MODULES and f not in TABLES} == {}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_says_what_it_is(package: str) -> None:
    """Below a top package the docstring names the allowed imports and I/O, and where to start."""
    text = ast.get_docstring(ast.parse(MODULES[package].read_text())) or ""
    first, _, rest = text.partition("\n")
    assert first.endswith(".")
    assert "mport" in rest, "what it may import, or who may import it"
    assert "I/O" in rest


# The contracts of pyproject.toml. `lint-imports` holds the code to them (`test_house`).

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
configure()  # import-linter's contracts need it
CONTRACTS = {
    contract["name"]: contract for contract in SETTINGS["contracts"] if contract["type"] == "layers"
}
FORBIDDEN = [contract for contract in SETTINGS["contracts"] if contract["type"] == "forbidden"]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    first, *others = SETTINGS["root_packages"]
    return grimp.build_graph(first, *others, include_external_packages=True, cache_dir=None)


def is_kept(contract: Mapping[str, Any], graph: grimp.ImportGraph) -> bool:
    options = {
        key: str(value) if isinstance(value, bool) else value
        for key, value in contract.items()
        if key not in ("name", "type")
    }
    kind = LayersContract if contract["type"] == "layers" else ForbiddenContract
    return bool(kind(contract["name"], SETTINGS, options).check(graph, verbose=False).kept)


def layers_of(contract: Mapping[str, Any]) -> list[list[str]]:
    """Return full names by layer, highest first; names of one layer may not import each other."""
    (container,) = contract["containers"]
    return [
        [f"{container}.{name.strip()}" for name in layer.split("|")] for layer in contract["layers"]
    ]


def test_every_top_package_and_every_large_one_in_it_has_a_contract() -> None:
    contained = {
        container for each in CONTRACTS.values() for container in each.get("containers", ())
    }
    assert contained == {
        "metaquorum",
        *(f"metaquorum.{top}" for top in TOPS if top != "metaquorum"),
        "metaquorum.dataplane.coordinators",
        "metaquorum.dataplane.log",
        "metaquorum.quorum",
        "metaquorum.spark",
    }
    for name, contract in CONTRACTS.items():
        assert contract.get("exhaustive"), name


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_contract_fails_when_it_is_broken(name: str, graph: grimp.ImportGraph) -> None:
    contract = CONTRACTS[name]
    assert is_kept(contract, copy.deepcopy(graph))
    layers = layers_of(contract)
    upwards = [(low, high) for highs, lows in pairwise(layers) for low in lows for high in highs]
    beside = [pair for layer in layers for pair in pairwise(layer)]
    for importer, imported in [*upwards, *beside]:
        broken = copy.deepcopy(graph)
        broken.add_import(importer=importer, imported=imported)
        assert not is_kept(contract, broken), f"{importer} may import {imported}"


@pytest.mark.parametrize("name", [name for name, c in CONTRACTS.items() if "containers" in c])
def test_a_new_package_needs_a_place(name: str, graph: grimp.ImportGraph) -> None:
    (container,) = CONTRACTS[name]["containers"]
    broken = copy.deepcopy(graph)
    broken.add_module(f"{container}.cellar")
    assert not is_kept(CONTRACTS[name], broken)


@pytest.mark.parametrize("contract", FORBIDDEN, ids=lambda contract: contract["name"])
def test_what_is_forbidden_is_found_through_others(
    contract: Mapping[str, Any], graph: grimp.ImportGraph
) -> None:
    assert is_kept(contract, copy.deepcopy(graph))
    (source,) = contract["source_modules"]
    for forbidden in contract["forbidden_modules"]:
        broken = copy.deepcopy(graph)
        if forbidden not in broken.modules:
            broken.add_module(forbidden, is_squashed=True)
        broken.add_import(importer="metaquorum.wire.primitives.varint", imported=forbidden)
        broken.add_import(
            importer=f"{source}.options", imported="metaquorum.wire.primitives.varint"
        )
        assert not is_kept(contract, broken), f"{source} may import {forbidden}"
