"""The controller's rules for changes of SCRAM credentials. Source: KIP-554."""

from itertools import islice
from typing import Final

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import (
    MAX_SALT_BYTES,
    MetadataRecord,
    RemoveScramCredentialRecord,
    ScramCredentialRecord,
    is_written,
)
from metaquorum.quorum.controller.decision import Decision
from metaquorum.security.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism, credential
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen

MAX_NAME_CHARS: Final = 249
# Deleted credentials whose salts the metadata keeps: 2 MB. Beyond it, each deletion drops one of
# them; authentication then treats its user like a user that never existed.
MAX_DELETED: Final = 10_000
_MECHANISMS: Final = frozenset(int(mechanism) for mechanism in ScramMechanism)


@frozen
class ScramUpsertion:
    """User's password for one mechanism, salted by the client."""

    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


@frozen
class UserScramChange:
    """Credential changes of one user in one request; either all of them are made or none.

    Each mechanism at most once. Kafka permits one mechanism for a user, so neither its tool nor
    any other can set both, or replace one by the other, in one request.
    """

    name: str
    deletions: tuple[int, ...] = ()  # mechanisms
    upsertions: tuple[ScramUpsertion, ...] = ()


def change_scram_credentials(
    image: MetadataImage, change: UserScramChange
) -> Decision[KafkaError | None]:
    """Decide the credential changes of one user; the answer is None or the error."""
    try:
        _check(image, change)
    except KafkaError as error:
        return Decision(error)
    records: list[MetadataRecord] = [
        _removal(image, image.scram[change.name, mechanism]) for mechanism in change.deletions
    ]
    too_many = max(0, len(image.deleted_scram) + len(records) - MAX_DELETED)
    # The map is ordered by hash, so no user and no time of deletion is preferred.
    for name, mechanism in islice(image.deleted_scram, min(too_many, len(records))):
        records.append(RemoveScramCredentialRecord(name, mechanism))
    records += [scram_record(change.name, upsertion) for upsertion in change.upsertions]
    return Decision(None, records)


def _removal(image: MetadataImage, removed: ScramCredentialRecord) -> RemoveScramCredentialRecord:
    if not is_written(RemoveScramCredentialRecord, "salt", image.features):
        return RemoveScramCredentialRecord(removed.name, removed.mechanism)
    return RemoveScramCredentialRecord(
        removed.name, removed.mechanism, removed.salt, removed.iterations
    )


def scram_record(name: str, upsertion: ScramUpsertion) -> ScramCredentialRecord:
    mechanism = ScramMechanism(upsertion.mechanism)
    made = credential(mechanism, upsertion.salted_password, upsertion.salt, upsertion.iterations)
    return ScramCredentialRecord(
        name, int(mechanism), made.salt, made.iterations, made.stored_key, made.server_key
    )


def _check(image: MetadataImage, change: UserScramChange) -> None:
    """Raise the error of the first row that has one, as Kafka does: deletions come first."""
    if not change.name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len(change.name) > MAX_NAME_CHARS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username is too long")
    named: set[int] = set()
    for mechanism in change.deletions:
        _check_mechanism(mechanism, named)
        if (change.name, mechanism) not in image.scram:
            raise KafkaError(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
    for upsertion in change.upsertions:
        _check_mechanism(upsertion.mechanism, named)
        check_upsertion(upsertion)


def _check_mechanism(mechanism: int, named: set[int]) -> None:
    """Raise KafkaError unless the mechanism is known and not in `named`; add it there."""
    if mechanism in named:
        raise KafkaError(
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        )
    if mechanism not in _MECHANISMS:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    named.add(mechanism)


def check_upsertion(upsertion: ScramUpsertion) -> None:
    """Raise KafkaError if the iterations, the salt or the salted password are invalid."""
    complaint = None
    if upsertion.iterations < MIN_ITERATIONS:
        complaint = "Too few iterations"
    elif upsertion.iterations > MAX_ITERATIONS:
        complaint = "Too many iterations"
    elif not upsertion.salt or len(upsertion.salt) > MAX_SALT_BYTES:
        complaint = "The salt is empty or too long"
    elif len(upsertion.salted_password) != ScramMechanism(upsertion.mechanism).key_bytes:
        complaint = "The salted password is not as long as the mechanism's hash"
    if complaint is not None:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, complaint)
