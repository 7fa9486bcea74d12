"""All supported messages and versions, compared with kio, an independent implementation."""

import dataclasses
import importlib
import io
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import Records

from metaquorum.wire.protocol.apis import FIRST_OWN_KEY
from metaquorum.wire.schema.codec import decode, encode
from metaquorum.wire.schema.compiling import fields_at
from metaquorum.wire.schema.message import Message, Struct
from tests.wire.schema.arbitrary import CASES, case_id, has_new_form, messages

pytestmark = pytest.mark.slow  # every version of every API, some 900 tests

st.register_type_strategy(Records, st.binary(max_size=200).map(Records))

# Kafka has the same names for other structs in the response.
RENAMED = {
    "AlteredEntry": "EntryData",
    "DescribeQuorumTopic": "TopicData",
    "DescribeQuorumPartition": "PartitionData",
}

KAFKAS = [(cls, version) for cls, version in CASES if cls.API < FIRST_OWN_KEY]


def oracle(cls: type[Message], version: int) -> Any:
    kind = EntityType.request if cls.__name__.endswith("Request") else EntityType.response
    module = load_payload_module(cls.API, version, kind)
    return getattr(module, cls.__name__)


def their_form(theirs: Any) -> tuple[Any, ...]:
    """Return all that kio says about a version of a message, or of a struct in it."""
    module = importlib.import_module(theirs.__module__)
    fields = []
    for field in dataclasses.fields(theirs):
        kind = str(field.type).replace(f"{module.__name__}.", "")
        named = [vars(module).get(name) for name in re.findall(r"\w+", kind)]
        inner = [one for one in named if getattr(one, "__module__", "") == module.__name__]
        metadata = tuple(sorted(field.metadata.items()))
        fields.append((field.name, kind, *map(their_form, inner), metadata, repr(field.default)))
    return (theirs.__flexible__, *fields)


every_case = pytest.mark.parametrize(("cls", "version"), KAFKAS, ids=case_id)
# kio has no form of its own at other versions, as a test below checks.
every_form = pytest.mark.parametrize(
    ("cls", "version"), [case for case in KAFKAS if has_new_form(*case)], ids=case_id
)
few = settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def oracle_bytes(theirs: Any, message: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(theirs)(buffer, message)
    return buffer.getvalue()


@every_form
@few
@given(data=st.data())
def test_oracle_reads_what_we_write_and_writes_the_same(
    cls: type[Message], version: int, data: st.DataObject
) -> None:
    message = data.draw(messages(cls, version))
    written = encode(message, version)
    theirs = oracle(cls, version)
    read, size = entity_reader(theirs)(written, 0)
    assert size == len(written)
    assert oracle_bytes(theirs, read) == written
    assert decode(cls, version, written) == message


@every_form
@few
@given(data=st.data())
def test_we_read_what_the_oracle_writes_and_write_the_same(
    cls: type[Message], version: int, data: st.DataObject
) -> None:
    theirs = oracle(cls, version)
    written = oracle_bytes(theirs, data.draw(st.from_type(theirs)))
    assert encode(decode(cls, version, written), version) == written


@every_case
def test_fields_are_the_oracle_s_in_its_order(cls: type[Message], version: int) -> None:
    compare_fields(cls, oracle(cls, version), version)


def test_versions_of_one_form_have_one_form_in_the_oracle() -> None:
    repeated = [case for case in KAFKAS if not has_new_form(*case)]
    assert len(repeated) > 100
    for cls, version in repeated:
        assert their_form(oracle(cls, version)) == their_form(oracle(cls, version - 1))


def compare_fields(ours: type[Struct], theirs: Any, version: int) -> None:
    body, tagged = fields_at(ours, version)
    names = [field.name for field in dataclasses.fields(theirs)]
    their_body = [f.name for f in dataclasses.fields(theirs) if "tag" not in f.metadata]
    their_tags = {
        f.metadata["tag"]: f.name for f in dataclasses.fields(theirs) if "tag" in f.metadata
    }
    assert [field.name.removesuffix("_ms") for field in body] == [
        name.removesuffix("_ms") for name in their_body
    ]
    assert {field.tag: field.name for field in tagged} == their_tags
    module = importlib.import_module(theirs.__module__)
    for field in ours.FIELDS:
        if field.name in names and isinstance(field.item, type):
            name = RENAMED.get(field.item.__name__, field.item.__name__)
            compare_fields(field.item, getattr(module, name), version)
