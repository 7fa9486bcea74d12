"""The client library under the name it had, for one release."""

import sys
from collections.abc import Iterator
from importlib import import_module

import pytest

import metaquorum.client
from metaquorum.client import admin, socket_transport, topic_survival, trio_transport

MODULES = {
    "admin": admin,
    "blocking": socket_transport,
    "explaining": topic_survival,
    "seams": trio_transport,
}


@pytest.fixture
def never_imported() -> Iterator[None]:
    def forget() -> None:
        for name in [name for name in sys.modules if f"{name}.".startswith("metaquorum.admin.")]:
            del sys.modules[name]

    forget()
    yield
    forget()


def test_the_old_name_warns_and_has_every_public_name(never_imported: None) -> None:
    with pytest.warns(DeprecationWarning, match=r"metaquorum\.admin is now metaquorum\.client"):
        old = import_module("metaquorum.admin")
    assert sorted(old.__all__) == sorted(metaquorum.client.__all__)
    for name in old.__all__:
        assert getattr(old, name) is getattr(metaquorum.client, name)


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_found_under_their_old_names(name: str, never_imported: None) -> None:
    with pytest.warns(DeprecationWarning, match="next release"):
        old = import_module(f"metaquorum.admin.{name}")
    assert old is MODULES[name]
    assert old.__name__.startswith("metaquorum.client.")


def test_a_module_that_never_was_is_not_found(never_imported: None) -> None:
    with pytest.warns(DeprecationWarning, match="next release"), pytest.raises(ModuleNotFoundError):
        import_module("metaquorum.admin.none_such")
