"""`@frozen`: a `@dataclass(frozen=True, slots=True)` in a tenth of the definition time.

Python 3.11 compiles the seven methods of a frozen dataclass separately, which takes 0.3 ms per
class. A node defines 150 such classes: a third of its start time. A class decorated with `@frozen`
compiles only `__init__`, when its first instance is created, as protocol messages do
(`metaquorum.wire.schema.message`).

The decorated class is a dataclass: `field`, `fields`, `replace`, `asdict`, `__post_init__` and
`match` work, and its values compare, hash and print as those of `@dataclass` do.
Deliberately absent, and rejected with TypeError: `InitVar`, `kw_only`, `field(init=False)`.
"""

from collections.abc import Callable
from dataclasses import (
    MISSING,
    Field,
    FrozenInstanceError,
    InitVar,
    dataclass,
    field,
    fields,
)
from operator import attrgetter
from typing import Any, Final, TypeVar, dataclass_transform

T = TypeVar("T")

_OMITTED: Final = object()


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass with slots. Raises TypeError for an unsupported field."""
    if not cls.__doc__:
        cls.__doc__ = f"{cls.__name__}."  # otherwise dataclass() builds one, which doubles its time
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    rows = fields(made)
    for row in made.__dataclass_fields__.values():
        if isinstance(row.type, InitVar) or not row.init or row.kw_only:
            raise TypeError(
                f"{cls.__name__}.{row.name}: @frozen supports no InitVar, init=False or kw_only"
            )
    own = made.__dict__
    for name, method in _methods(rows).items():
        if name not in own or (name == "__hash__" and own[name] is None):
            setattr(made, name, method)
    made.__init__ = _first_init(made, rows)
    made.__setattr__ = _refuse_assignment
    made.__delattr__ = _refuse_deletion
    return made  # type: ignore[no-any-return]


def _refuse_assignment(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function from an instance to the tuple of these attributes."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda instance: tuple(getattr(instance, name) for name in names)


def _methods(rows: tuple[Field[Any], ...]) -> dict[str, Any]:
    compared = _getter([row.name for row in rows if row.compare])
    hashed = compared
    if any(row.hash is not None for row in rows):
        hashed = _getter([r.name for r in rows if (r.compare if r.hash is None else r.hash)])
    stored = _getter([row.name for row in rows])
    shown = [row.name for row in rows if row.repr]
    names = [row.name for row in rows]

    def __eq__(self: Any, other: object) -> bool:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return compared(self) == compared(other)

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(hashed(self))

    def __repr__(self: Any) -> str:  # noqa: N807
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{self.__class__.__qualname__}({values})"

    def __getstate__(self: Any) -> list[Any]:  # noqa: N807
        return list(stored(self))

    def __setstate__(self: Any, state: list[Any]) -> None:  # noqa: N807
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return {
        "__eq__": __eq__,
        "__hash__": __hash__,
        "__repr__": __repr__,
        "__getstate__": __getstate__,
        "__setstate__": __setstate__,
    }


def _first_init(cls: Any, rows: tuple[Field[Any], ...]) -> Callable[..., None]:
    """Return an `__init__` that replaces itself in `cls` by a compiled one when it is called."""

    def __init__(self: Any, *values: Any, **named: Any) -> None:  # noqa: N807
        cls.__init__ = _compile_init(cls, rows)
        cls.__init__(self, *values, **named)

    return __init__


def _compile_init(cls: Any, rows: tuple[Field[Any], ...]) -> Callable[..., None]:
    scope: dict[str, Any] = {"OMITTED": _OMITTED}
    parameters, body = ["self"], []
    for number, row in enumerate(rows):
        name = value = row.name
        scope[f"_set_{number}"] = getattr(cls, name).__set__  # the setter of the slot
        if row.default is not MISSING:
            scope[f"_default_{number}"] = row.default
            parameters.append(f"{name}=_default_{number}")
        elif row.default_factory is not MISSING:
            scope[f"_new_{number}"] = row.default_factory
            parameters.append(f"{name}=OMITTED")
            value = f"_new_{number}() if {name} is OMITTED else {name}"
        else:
            parameters.append(name)
        body.append(f"_set_{number}(self, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    source = f"def __init__({', '.join(parameters)}):\n  " + "\n  ".join(body or ["pass"])
    exec(compile(source, f"<init of {cls.__name__}>", "exec"), scope)  # noqa: S102 - our own fields
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init
