"""Which changes of SCRAM credentials the controller takes."""

import pytest

from metaquorum.image import MetadataImage
from metaquorum.records import decode_record, encode_record, record_text
from metaquorum.replay import replay
from metaquorum.scram import ScramMechanism
from metaquorum.scram_changes import ScramUpsertion, UserScramChange, change_scram_credentials
from tests.metaquorum.histories import CLUSTER
from wire.errors import ErrorCode

EMPTY = MetadataImage.empty(CLUSTER)
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
    """Kafka refuses that; its own tool asks for it when it is told both at once."""
    both = UserScramChange("alice", upsertions=(upsertion(SHA_256), upsertion(SHA_512, 8192)))
    image = changed(EMPTY, both)
    assert {key: record.iterations for key, record in image.scram.items()} == {
        ("alice", SHA_256): 4096,
        ("alice", SHA_512): 8192,
    }
    image = changed(image, UserScramChange("alice", (SHA_256,)))
    assert list(image.scram) == [("alice", SHA_512)]
    assert not changed(image, UserScramChange("alice", (SHA_512,))).scram


def test_all_of_a_user_s_changes_are_made_or_none() -> None:
    image = changed(EMPTY, UserScramChange("alice", upsertions=(upsertion(SHA_256),)))
    wishes = UserScramChange("alice", (SHA_256,), (upsertion(SHA_512, 1),))
    assert refusal(image, wishes) is ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert refusal(image, UserScramChange("alice", (SHA_256, SHA_512))) is (
        ErrorCode.RESOURCE_NOT_FOUND
    )


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
