"""SCRAM credential changes that the controller accepts or rejects."""

import pytest

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import (
    FeatureLevelRecord,
    RecordEncoder,
    RemoveScramCredentialRecord,
    decode_record,
    encode_record,
    record_text,
)
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.scram_changes import (
    ScramUpsertion,
    UserScramChange,
    change_scram_credentials,
)
from metaquorum.security.scram import ScramMechanism
from metaquorum.wire.primitives.errors import ErrorCode
from tests.metaquorum.quorum.storage.histories import CLUSTER

LEVELS = {level: [FeatureLevelRecord("metadata.version", level)] for level in (1, 2)}
EMPTY, _ = replay(MetadataImage.empty(CLUSTER), LEVELS[2])
SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


def upsertion(mechanism: int, iterations: int = 4096) -> ScramUpsertion:
    return ScramUpsertion(mechanism, iterations, b"salt", bytes(64 if mechanism == 2 else 32))


def changed(image: MetadataImage, change: UserScramChange) -> MetadataImage:
    decision = change_scram_credentials(image, change)
    assert decision.answer is None, decision.answer
    return replay(image, decision.all_records())[0]


def refusal(image: MetadataImage, change: UserScramChange) -> ErrorCode:
    decision = change_scram_credentials(image, change)
    assert decision.answer is not None
    assert not decision.all_records()
    return decision.answer.code


def test_a_user_may_have_both_mechanisms_from_one_request() -> None:
    """Kafka rejects this, although its own tool sends such requests."""
    both = UserScramChange("alice", upsertions=(upsertion(SHA_256), upsertion(SHA_512, 8192)))
    image = changed(EMPTY, both)
    assert {key: record.iterations for key, record in image.scram.items()} == {
        ("alice", SHA_256): 4096,
        ("alice", SHA_512): 8192,
    }
    image = changed(image, UserScramChange("alice", (SHA_256,)))
    assert list(image.scram) == [("alice", SHA_512)]
    assert not changed(image, UserScramChange("alice", (SHA_512,))).scram


def test_the_first_row_with_an_error_decides() -> None:
    """Deletions come first. As answered by Kafka 4.3.1."""
    few, valid = upsertion(SHA_256, 1), upsertion(SHA_256)
    image = changed(EMPTY, UserScramChange("b", upsertions=(valid,)))
    for name, deletions, upsertions, code in (
        ("missing", (SHA_256,), (valid,), ErrorCode.RESOURCE_NOT_FOUND),
        ("missing", (SHA_256, SHA_256), (), ErrorCode.RESOURCE_NOT_FOUND),
        ("b", (SHA_256,), (valid,), ErrorCode.DUPLICATE_RESOURCE),
        ("b", (SHA_256, SHA_256), (), ErrorCode.DUPLICATE_RESOURCE),
        ("b", (9,), (valid,), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ("b", (9, 9), (), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ("e", (), (few, valid), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("e", (), (valid, few), ErrorCode.DUPLICATE_RESOURCE),
        ("", (9,), (few,), ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ):
        assert refusal(image, UserScramChange(name, deletions, upsertions)) is code


def test_all_of_a_user_s_changes_are_made_or_none() -> None:
    image = changed(EMPTY, UserScramChange("alice", upsertions=(upsertion(SHA_256),)))
    specs = UserScramChange("alice", (SHA_256,), (upsertion(SHA_512, 1),))
    assert refusal(image, specs) is ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert refusal(image, UserScramChange("alice", (SHA_256, SHA_512))) is (
        ErrorCode.RESOURCE_NOT_FOUND
    )


def test_the_salt_and_the_count_of_a_deleted_user_are_kept_until_it_is_created_again() -> None:
    image = changed(EMPTY, UserScramChange("alice", upsertions=(upsertion(SHA_256, 5000),)))
    image = changed(image, UserScramChange("alice", (SHA_256,)))
    deleted = image.deleted_scram["alice", SHA_256]
    assert (deleted.salt, deleted.iterations) == (b"salt", 5000)
    assert "salt=[hidden]" in record_text(deleted)
    assert decode_record(encode_record(deleted)) == deleted
    snapshot = replay(EMPTY, image.records())[0]
    assert dict(snapshot.deleted_scram.in_order()) == {("alice", SHA_256): deleted}
    assert not changed(
        image, UserScramChange("alice", upsertions=(upsertion(SHA_256),))
    ).deleted_scram


def test_no_more_salts_of_deleted_users_are_kept_than_there_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metaquorum.quorum.controller.scram_changes.MAX_DELETED", 3)
    image = EMPTY
    for number in range(5):
        both = (upsertion(SHA_256), upsertion(SHA_512))
        image = changed(image, UserScramChange(f"user-{number}", upsertions=both))
        image = changed(image, UserScramChange(f"user-{number}", (SHA_256, SHA_512)))
        assert len(image.deleted_scram) == min(3, 2 * number + 2)
        assert {(f"user-{number}", SHA_256), (f"user-{number}", SHA_512)} <= set(
            image.deleted_scram
        ), "the last are kept"
    assert not image.scram


def test_a_removal_at_level_1_has_no_salt_because_older_nodes_cannot_read_it() -> None:
    image, _ = replay(MetadataImage.empty(CLUSTER), LEVELS[1])
    image = changed(image, UserScramChange("alice", upsertions=(upsertion(SHA_256),)))
    removal = change_scram_credentials(image, UserScramChange("alice", (SHA_256,)))
    (record,) = removal.all_records()
    RecordEncoder(image.features).encode(record)
    assert not replay(image, [record])[0].deleted_scram


def test_a_removal_written_by_an_older_version_keeps_no_salt() -> None:
    image = changed(EMPTY, UserScramChange("alice", upsertions=(upsertion(SHA_256),)))
    old = decode_record(encode_record(RemoveScramCredentialRecord("alice", int(SHA_256)), 0))
    image = replay(image, [old])[0]
    assert not image.scram
    assert not image.deleted_scram


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (UserScramChange("", (SHA_256,)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (UserScramChange("a" * 250, (SHA_256,)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (UserScramChange("a", (3,)), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (
            UserScramChange("a", upsertions=(ScramUpsertion(1, 4096, b"", bytes(32)),)),
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
        ),
        (
            UserScramChange("a", upsertions=(ScramUpsertion(1, 4096, bytes(1025), bytes(32)),)),
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
        ),
        (
            UserScramChange("a", upsertions=(ScramUpsertion(2, 4096, b"salt", bytes(32)),)),
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
        ),
        (
            UserScramChange("a", upsertions=(upsertion(1), upsertion(1))),
            ErrorCode.DUPLICATE_RESOURCE,
        ),
    ],
)
def test_what_makes_no_sense_is_refused(change: UserScramChange, code: ErrorCode) -> None:
    assert refusal(EMPTY, change) is code


def test_what_a_password_was_made_into_is_in_no_dump() -> None:
    salted = bytes(range(32))
    change = UserScramChange("alice", upsertions=(ScramUpsertion(1, 4096, b"salt", salted),))
    (record,) = change_scram_credentials(EMPTY, change).all_records()
    assert decode_record(encode_record(record)) == record
    text = record_text(record)
    assert "name=alice" in text
    assert "stored_key=[hidden]" in text
    assert record.stored_key.hex() not in text  # type: ignore[union-attr]
