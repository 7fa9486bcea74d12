"""Valid quotas of an entity, and entities that match a filter."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.quota_lookup import (
    CLIENT_ID,
    IP,
    USER,
    EntityPart,
    QuotaEntity,
    SpecialName,
)
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.quota_changes import (
    FilterPart,
    MatchType,
    QuotaChange,
    QuotaFilter,
    QuotaOp,
    change_quotas,
)
from metaquorum.wire.primitives.errors import ErrorCode
from tests.metaquorum.quorum.storage.histories import CLUSTER

EMPTY = MetadataImage.empty(CLUSTER)
ALICE = (EntityPart(USER, "alice"),)
RATE = "producer_byte_rate"
NAMES = st.sampled_from(["a", "b", SpecialName.DEFAULT, SpecialName.ABSENT])
ENTITIES = st.builds(QuotaEntity, NAMES, NAMES, st.just(SpecialName.ABSENT)) | st.builds(
    lambda ip: QuotaEntity(ip=ip), st.sampled_from(["10.0.0.1", SpecialName.DEFAULT])
)


def changed(image: MetadataImage, parts: tuple[EntityPart, ...], *ops: QuotaOp) -> MetadataImage:
    decision = change_quotas(image, QuotaChange(parts, ops))
    assert decision.answer is None, decision.answer
    return replay(image, decision.all_records())[0]


def test_a_quota_is_set_changed_and_gone_without_a_trace() -> None:
    image = changed(EMPTY, ALICE, QuotaOp(RATE, 10.0), QuotaOp("request_percentage", 50.0))
    assert image.client_quotas[QuotaEntity(user="alice")] == {RATE: 10.0, "request_percentage": 50}
    assert not change_quotas(image, QuotaChange(ALICE, [QuotaOp(RATE, 10.0)])).all_records()
    image = changed(image, ALICE, QuotaOp(RATE, 20.0), QuotaOp("request_percentage", None))
    assert image.client_quotas[QuotaEntity(user="alice")] == {RATE: 20.0}
    image = changed(image, ALICE, QuotaOp(RATE, None), QuotaOp("no such quota", None))
    assert not image.client_quotas


def test_one_bad_value_refuses_all_of_an_entity() -> None:
    for value in (0.0, -1.0, 0.5, 2.0**64, math.inf, math.nan):
        ops = [QuotaOp("consumer_byte_rate", 5.0), QuotaOp(RATE, value)]
        decision = change_quotas(EMPTY, QuotaChange(ALICE, ops))
        assert decision.answer is not None
        assert decision.answer.code is ErrorCode.INVALID_REQUEST
        assert not decision.all_records()


@pytest.mark.parametrize(("given_", "kept"), [("::0001", "::1"), ("10.0.0.1", "10.0.0.1")])
def test_an_address_is_kept_as_connections_bring_it(given_: str, kept: str) -> None:
    image = changed(EMPTY, (EntityPart(IP, given_),), QuotaOp("connection_creation_rate", 5.0))
    assert list(image.client_quotas) == [QuotaEntity(ip=kept)]


def test_a_name_like_the_text_of_a_default_is_a_name() -> None:
    image = changed(EMPTY, (EntityPart(USER, "<default>"),), QuotaOp(RATE, 1.0))
    image = changed(image, (EntityPart(USER, None),), QuotaOp(RATE, 2.0))
    assert len(image.client_quotas) == 2
    again, _ = replay(EMPTY, image.records())
    assert dict(again.client_quotas) == dict(image.client_quotas)


@given(ENTITIES)
def test_an_entity_is_the_sum_of_its_parts(entity: QuotaEntity) -> None:
    assert QuotaEntity.of(entity.parts()) == entity
    assert QuotaEntity.of(reversed(entity.parts())) == entity


@given(ENTITIES, st.sampled_from([(USER,), (CLIENT_ID,), (IP,), (USER, CLIENT_ID), ()]))
def test_a_strict_filter_meets_what_has_no_other_part(
    entity: QuotaEntity, kinds: tuple[str, ...]
) -> None:
    parts = [FilterPart(kind, MatchType.ANY, None) for kind in kinds]
    has = {kind for kind, _ in entity.parts()}
    assert QuotaFilter(parts, strict=False).meets(entity) == (set(kinds) <= has)
    assert QuotaFilter(parts, strict=True).meets(entity) == (set(kinds) == has)
