"""`@frozen`, compared with the standard `@dataclass(frozen=True, slots=True)`."""

import copy
import pickle
from dataclasses import (
    KW_ONLY,
    FrozenInstanceError,
    InitVar,
    asdict,
    astuple,
    dataclass,
    field,
    fields,
    is_dataclass,
    replace,
)
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.wire.primitives.frozen import frozen

T = TypeVar("T")
STANDARD = dataclass(frozen=True, slots=True)


def many(make: Any) -> Any:
    @make
    class Many(Generic[T]):
        """A class with every kind of field."""

        number: int
        text: str = ""
        items: list[T] = field(default_factory=list)
        secret: str = field(default="", repr=False)
        note: str = field(default="", compare=False)
        rarely: int = field(default=0, hash=False)
        new_0: int = 0  # names as the compiled __init__ might use them
        self_: int = 0

    return Many


def few(make: Any) -> tuple[Any, Any, Any]:
    @make
    class Nothing: ...

    @make
    class One:
        value: Any

    @make
    class Checked:
        value: int

        def __post_init__(self) -> None:
            if self.value < 0:
                raise ValueError("below 0")

        def __repr__(self) -> str:
            return "its own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

        def __hash__(self) -> int:
            return 7

    return Nothing, One, Checked


class Base:
    __slots__ = ()

    def doubled(self) -> int:
        return 2 * self.value  # type: ignore[attr-defined,no-any-return]


@frozen
class Derived(Base):
    value: int


@frozen
class Child(Derived):
    more: int = 1


OURS, THEIRS = many(frozen), many(STANDARD)
ROWS = st.fixed_dictionaries(
    {"number": st.integers(0, 2)},
    optional={
        "text": st.sampled_from("ab"),
        "items": st.lists(st.integers(0, 1), max_size=2),
        "secret": st.sampled_from("ab"),
        "note": st.sampled_from("ab"),
        "rarely": st.integers(0, 1),
        "new_0": st.integers(0, 1),
    },
)


@given(ROWS, ROWS)
def test_values_are_as_those_of_a_dataclass(row: dict[str, Any], other: dict[str, Any]) -> None:
    ours, theirs = OURS(**row), THEIRS(**row)
    assert repr(ours) == repr(theirs)
    assert astuple(ours) == astuple(theirs)
    assert asdict(ours) == asdict(theirs)
    assert (ours == OURS(**other)) == (theirs == THEIRS(**other))
    assert ours == replace(ours) == copy.deepcopy(ours)
    assert replace(ours, text="c").text == "c"
    assert ours != theirs
    hashable = row | {"items": ()}
    assert hash(OURS(**hashable)) == hash(THEIRS(**hashable))


@pytest.mark.parametrize("value", [0, (), "x", (1, 2)])
def test_classes_of_few_fields_are_as_those_of_a_dataclass(value: object) -> None:
    (nothing, one, _), (their_nothing, their_one, _) = few(frozen), few(STANDARD)
    assert nothing() == nothing()
    assert hash(nothing()) == hash(their_nothing())
    assert repr(one(value)) == repr(their_one(value))
    assert hash(one(value)) == hash(their_one(value))
    assert one(value) == one(value) != one(None)


def test_its_fields_are_known() -> None:
    assert is_dataclass(OURS)
    assert [row.name for row in fields(OURS)] == [row.name for row in fields(THEIRS)]
    assert OURS.__match_args__ == THEIRS.__match_args__
    assert OURS.__slots__ == THEIRS.__slots__
    match OURS(1, "x"):
        case OURS(1, text):
            assert text == "x"
        case _:
            pytest.fail("does not match")


def test_what_a_class_says_itself_stays() -> None:
    for _, _, checked in (few(frozen), few(STANDARD)):
        assert repr(checked(1)) == "its own"
        assert checked(1) == checked(2)
        assert hash(checked(1)) == 7
        for _ in range(2):
            with pytest.raises(ValueError, match="below 0"):
                checked(-1)


def test_it_cannot_be_changed() -> None:
    value = OURS(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'number'"):
        value.number = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'number'"):
        del value.number
    with pytest.raises(AttributeError):
        value.unknown = 2
    assert value.number == 1


def test_wrong_arguments_are_refused_each_time() -> None:
    for make in (frozen, STANDARD):
        cls = many(make)
        for _ in range(2):
            with pytest.raises(TypeError, match=r"Many\.__init__\(\) missing 1 required"):
                cls()
            with pytest.raises(TypeError, match="unexpected keyword argument 'numbers'"):
                cls(numbers=1)


def test_defaults_are_made_for_each_value() -> None:
    first, second = OURS(1), OURS(1)
    first.items.append(1)
    assert second.items == []


def test_classes_can_be_derived() -> None:
    assert Derived(2).doubled() == Child(2).doubled() == 4
    assert repr(Child(2, 3)) == "Child(value=2, more=3)"
    assert Derived(2) != Child(2)
    assert Child(2, 3) == Child(value=2, more=3)


def test_it_can_be_sent_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(Child(2, 3))) == Child(2, 3)


def test_what_it_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match=r"A\.x: @frozen supports no InitVar"):

        @frozen
        class A:
            x: InitVar[int]

    with pytest.raises(TypeError, match=r"B\.x"):

        @frozen
        class B:
            x: int = field(init=False)

    with pytest.raises(TypeError, match=r"C\.x"):

        @frozen
        class C:
            _: KW_ONLY
            x: int
