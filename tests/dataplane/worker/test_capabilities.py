"""The signature of a handler lists the parts of its worker that the handler uses, and no others.

mypy checks that handlers use only parts of their Protocols and that the worker has all of them.
These tests check the reverse by syntax: each listed part is used by a handler.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest

from tests.nodes import ROOT, module_name

HANDLERS = "metaquorum.dataplane.handlers"
CAPABILITIES = "metaquorum.dataplane.worker.capabilities"
DISPATCHER = f"{HANDLERS}.dispatcher"
# Other modules that handlers pass their worker to.
OTHERS = (
    CAPABILITIES,
    "metaquorum.dataplane.worker.mutation_limits",
    "metaquorum.dataplane.fetch.reader",
)
# Most own parts and bases of a Protocol, together.
MOST_PARTS = 6
# Most parts including inherited ones: the number of Fetch, which reads, waits and keeps sessions.
MOST_IN_ALL = 13

Name: TypeAlias = tuple[str, str]  # module, and name in it


def sources() -> dict[str, str]:
    paths = list((ROOT / "dataplane/handlers").rglob("*.py"))
    paths += [ROOT / f"{module.replace('.', '/')}.py" for module in OTHERS]
    found = {module_name(path.resolve()): path.read_text() for path in paths}
    assert found.pop(DISPATCHER)
    return found


@dataclass
class Capability:
    """Parts and bases of one Protocol."""

    bases: list[Name]
    # By own part: the names in the annotation of its type or return type.
    parts: dict[str, set[Name]]


@dataclass
class Unit:
    """Use of worker parameters in one function or class of a module."""

    takes: set[Name] = field(default_factory=set)  # annotations of worker parameters
    touched: set[str] = field(default_factory=set)
    gives_to: set[Name] = field(default_factory=set)  # units that it passes its worker to
    attributes: set[str] = field(default_factory=set)  # attributes of any object


class Handlers:
    """The Protocols of some modules, and the functions and classes that take them."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self.complaints: list[str] = []
        self.capabilities: dict[Name, Capability] = {}
        self.units: dict[Name, Unit] = {}
        trees = {name: ast.parse(source) for name, source in modules.items()}
        self._names = {name: _names(name, tree) for name, tree in trees.items()}
        for module, tree in trees.items():
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
                    self.capabilities[module, node.name] = self._capability(module, node)
        for module, tree in trees.items():
            for node in tree.body:
                if (
                    isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                    and (module, node.name) not in self.capabilities
                ):
                    self.units[module, node.name] = self._unit(module, node)

    def _resolve(self, module: str, node: ast.expr) -> Name | None:
        """Return the definition of a name, or of a name in an imported module."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            parent = self._names[module].get(node.value.id)
            return parent and (".".join(parent), node.attr)
        return self._names[module].get(node.id) if isinstance(node, ast.Name) else None

    def _capability(self, module: str, node: ast.ClassDef) -> Capability:
        bases = [found for base in node.bases if (found := self._resolve(module, base))]
        parts = {
            each.name: {
                found
                for name in ast.walk(each.returns or ast.Constant(None))
                if isinstance(name, ast.Name) and (found := self._resolve(module, name))
            }
            for each in node.body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        return Capability([base for base in bases if base[1] != "Protocol"], parts)

    def _unit(
        self, module: str, top: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ) -> Unit:
        unit = Unit()
        workers = set()  # expressions
        for node in ast.walk(top):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                annotation = arg.annotation and self._resolve(module, arg.annotation)
                if annotation in self.capabilities:
                    assert annotation is not None
                    unit.takes.add(annotation)
                    workers.add(arg.arg)
                elif arg.arg == "worker" and (
                    arg.annotation is None or ast.unparse(arg.annotation) != "object"
                ):
                    self.complaints.append(f"{module}.{top.name} takes a worker without a Protocol")
        for _ in range(2):  # first assignments of a worker, then aliases
            for target, value in _assignments(top):
                if ast.unparse(value) in workers:
                    workers.add(ast.unparse(target))
        for node in ast.walk(top):
            if isinstance(node, ast.Attribute):
                unit.attributes.add(node.attr)
                if ast.unparse(node.value) in workers:
                    unit.touched.add(node.attr)
            elif isinstance(node, ast.Call):
                given = [*node.args, *[keyword.value for keyword in node.keywords]]
                if any(ast.unparse(each) in workers for each in given):
                    callee = node.func
                    if ast.unparse(callee) == "partial":
                        callee = node.args[0]
                    unit.gives_to.add(self._resolve(module, callee) or ("", ast.unparse(callee)))
        return unit

    def parts_of(self, name: Name) -> Iterator[str]:
        """Yield all parts of a Protocol, including those of its bases."""
        yield from self.capabilities[name].parts
        for base in self.capabilities[name].bases:
            if base in self.capabilities:
                yield from self.parts_of(base)

    def reached(self, units: Iterable[Name]) -> set[Name]:
        """Return these units and all units that they pass their worker to, transitively."""
        found: set[Name] = set()
        todo = list(units)
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += self.units[name].gives_to & self.units.keys()
        return found

    def all_complaints(self) -> list[str]:
        found = list(self.complaints)
        for (module, name), unit in self.units.items():
            for to in unit.gives_to - self.units.keys():
                found.append(f"{module}.{name} gives its worker to {'.'.join(to)}")
        taken = {name for unit in self.units.values() for name in unit.takes}
        parts: dict[Name, set[Name]] = {}  # units that have a part, by its Protocol
        for name in taken:
            at_hand = self.reached(at for at, unit in self.units.items() if name in unit.takes)
            touched = {part for at in at_hand for part in self.units[at].touched}
            for part in sorted(set(self.parts_of(name)) - touched):
                found.append(f"nothing that takes {'.'.join(name)} touches {part}")
            self._note_parts(name, at_hand, parts)
        for name, near in parts.items():
            used = {attribute for at in near for attribute in self.units[at].attributes}
            for part in sorted(set(self.parts_of(name)) - used):
                if not part.startswith("__"):
                    found.append(f"nothing that has {'.'.join(name)} touches {part} of it")
        used_at_all = self._bases([*taken, *parts])
        found += [
            f"{'.'.join(name)} is not used" for name in self.capabilities.keys() - used_at_all
        ]
        for name, each in self.capabilities.items():
            too_many = len(each.bases) + len(each.parts) > MOST_PARTS
            if too_many or len(set(self.parts_of(name))) > MOST_IN_ALL:
                found.append(f"{'.'.join(name)} has too many parts: it is a worker by another name")
        return sorted(found)

    def _note_parts(self, name: Name, units: set[Name], parts: dict[Name, set[Name]]) -> None:
        """Add to `parts` which of `units`, that take `name`, use its parts typed as Protocols."""
        for base in self._bases([name]):
            for part, types in self.capabilities[base].parts.items():
                near = {at for at in units if part in self.units[at].attributes}
                for kind in types & self.capabilities.keys():
                    parts.setdefault(kind, set()).update(near)
                    self._note_parts(kind, near, parts)

    def _bases(self, names: Iterable[Name]) -> set[Name]:
        found: set[Name] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name in self.capabilities and name not in found:
                found.add(name)
                todo += self.capabilities[name].bases
        return found


def _names(module: str, tree: ast.Module) -> dict[str, Name]:
    """Return the definitions and imports of a module, by their names in it."""
    found: dict[str, Name] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = (str(node.module), alias.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = (module, node.name)
    return found


def _assignments(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=True)
            else:
                yield target, node.value


def test_handlers_name_what_they_touch_and_nothing_else() -> None:
    found = Handlers(sources())
    assert found.all_complaints() == []
    assert len(found.capabilities) > 40
    handlers = [unit for (_, name), unit in found.units.items() if name.startswith("handle_")]
    assert len(handlers) > 35
    assert sum(bool(unit.takes) for unit in handlers) > 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "before", "after", "complaint"),
    [
        (
            "api_versions",
            "worker: HasImage",
            "worker: Worker",
            f"{HANDLERS}.api_versions.handle_api_versions takes a worker without a Protocol",
        ),
        (
            "groups.offsets",
            "_of_group(\n    worker: CoordinatesOffsets,",
            "_of_group(\n    worker,",
            f"{HANDLERS}.groups.offsets._of_group takes a worker without a Protocol",
        ),
        (
            "elections",
            "class ElectsLeaders(AsksController, HasImage, Protocol):",
            "class ElectsLeaders(AsksController, HasImage, Protocol):\n"
            "    @property\n    def disk(self) -> Disk: ...",
            f"nothing that takes {HANDLERS}.elections.ElectsLeaders touches disk",
        ),
        (  # a function that Produce calls uses it
            "produce_outcome",
            "known.leader_id != worker.worker_id",
            "known.leader_id",
            f"nothing that takes {HANDLERS}.produce.Produces touches worker_id",
        ),
        (  # an attribute is the worker
            "produce_outcome",
            "self._worker.errors",
            "self._errors",
            f"nothing that takes {HANDLERS}.produce_outcome.AnswersProduce touches errors",
        ),
        (  # a variable is that attribute
            "offsets",
            "worker.partition_failed(",
            "partition_failed(",
            f"nothing that takes {HANDLERS}.offsets.LooksUpOffsets touches partition_failed",
        ),
        (
            "fetch.incremental_fetch",
            "self.worker.replica_manager, part.asked",
            "self.replica_manager, part.asked",
            f"nothing that takes {HANDLERS}.fetch.capabilities.AnswersFetches touches"
            " replica_manager",
        ),
        (
            "replicas",
            "worker.isr_manager.heard_at(",
            "heard_at(worker.isr_manager, ",
            f"nothing that has {HANDLERS}.replicas.FollowerContacts touches heard_at of it",
        ),
        (  # a part of a part
            "records",
            "worker.replica_manager.log_dirs.checkpoint(log_dir)",
            "worker.replica_manager.log_dirs(log_dir)",
            f"nothing that has {HANDLERS}.records.Checkpoints touches checkpoint of it",
        ),
        (
            "log_dirs",
            "class HostsLogs(Protocol):",
            "class Spare(HasDisk, Protocol):\n    pass\n\n\nclass HostsLogs(Protocol):",
            f"{HANDLERS}.log_dirs.Spare is not used",
        ),
        (
            "configs",
            "result = await _describe(worker,",
            "result = await elsewhere(worker,",
            f"{HANDLERS}.configs.handle_describe_configs gives its worker to .elsewhere",
        ),
        (
            "metadata",
            "class AwaitsLeaders(DescribesTopics, Protocol):",
            "class AwaitsLeaders(DescribesTopics, HasImage, HasSlicer, HasWorkerId, ViewsLeaders,"
            " Protocol):",
            f"{HANDLERS}.metadata.AwaitsLeaders has too many parts: it is a worker by another name",
        ),
        (
            "fetch.handler",
            "class Fetches(LimitsFetches, KeepsSessions, Protocol):",
            "class Fetches(LimitsFetches, KeepsSessions, Protocol):\n"
            "    @property\n    def cleaner(self) -> CleanerStatistics: ...",
            f"{HANDLERS}.fetch.handler.Fetches has too many parts: it is a worker by another name",
        ),
    ],
)
def test_what_is_not_so_is_found(module: str, before: str, after: str, complaint: str) -> None:
    modules = sources()
    name = f"{HANDLERS}.{module}"
    assert before in modules[name]
    modules[name] = modules[name].replace(before, after)
    assert complaint in Handlers(modules).all_complaints()
