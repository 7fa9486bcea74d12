"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554)."""

from collections import Counter
from typing import Final

from metaquorum.dataplane.scheduling.time_slices import TimeSlicer, in_pieces, pause, pieces
from metaquorum.dataplane.worker.capabilities import AsksController, ReadsMetadata
from metaquorum.dataplane.worker.context import Request
from metaquorum.metadata.records import ScramCredentialRecord
from metaquorum.quorum.controller.scram_changes import ScramUpsertion, UserScramChange
from metaquorum.quorum.rpc.methods import CHANGE_SCRAM_CREDENTIALS, ChangeScramCredentials
from metaquorum.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from metaquorum.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

# Seconds; the request has no timeout of its own.
ALTER_S: Final = 30.0


async def handle_describe_user_scram_credentials(
    worker: ReadsMetadata, request: Request, message: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Describe the credentials of the named users; without names, of all users (KIP-554)."""
    known: dict[str, list[CredentialInfo]] = {}
    asked: Counter[str] = Counter()

    def know(entry: tuple[tuple[str, int], ScramCredentialRecord]) -> None:
        (name, mechanism), record = entry
        info = CredentialInfo(mechanism=mechanism, iterations=record.iterations)
        known.setdefault(name, []).append(info)

    await in_pieces(worker.image.scram.in_order(), know)
    for users in pieces(message.users or ()):
        asked.update([user.name for user in users])
        await pause()
    if not asked:
        asked.update(known.keys())

    def describe(name: str) -> DescribeUserScramCredentialsResult:
        count = asked[name]
        result = DescribeUserScramCredentialsResult(user=name)
        if count > 1:
            result.error_code = ErrorCode.DUPLICATE_RESOURCE
            result.error_message = (
                f"Cannot describe SCRAM credentials for the same user twice in a single request:"
                f" {name}"
            )
        elif name not in known:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = (
                f"Attempt to describe a user credential that does not exist: {name}"
            )
        else:
            result.credential_infos = known[name]
        return result

    results = await in_pieces(asked, describe)
    worker.slicer.discard(known, asked)
    return DescribeUserScramCredentialsResponse(results=results)


async def handle_alter_user_scram_credentials(
    worker: AsksController, request: Request, message: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    slicer = worker.slicer
    changes = await _scram_changes(slicer, message)
    try:
        outcomes = await worker.controller_client.change_each(
            CHANGE_SCRAM_CREDENTIALS,
            changes,
            lambda part: ChangeScramCredentials(request.context, part),
            timeout_s=ALTER_S,
        )
        results = await in_pieces(zip(changes, outcomes, strict=True), _scram_result)
    finally:
        slicer.discard(changes)
    return AlterUserScramCredentialsResponse(results=results)


async def _scram_changes(
    slicer: TimeSlicer, message: AlterUserScramCredentialsRequest
) -> list[UserScramChange]:
    deletions: dict[str, list[int]] = {}
    upsertions: dict[str, list[ScramUpsertion]] = {}

    def delete(deletion: ScramCredentialDeletion) -> None:
        deletions.setdefault(deletion.name, []).append(deletion.mechanism)

    def upsert(upsertion: ScramCredentialUpsertion) -> None:
        upsertions.setdefault(upsertion.name, []).append(
            ScramUpsertion(
                upsertion.mechanism,
                upsertion.iterations,
                bytes(upsertion.salt),
                bytes(upsertion.salted_password),
            )
        )

    def change(name: str) -> None:
        if name not in changes:
            changes[name] = UserScramChange(
                name, tuple(deletions.get(name, ())), tuple(upsertions.get(name, ()))
            )

    await in_pieces(message.deletions, delete)
    await in_pieces(message.upsertions, upsert)
    changes: dict[str, UserScramChange] = {}
    await in_pieces(deletions, change)
    await in_pieces(upsertions, change)
    in_order = list(changes.values())
    slicer.discard(deletions, upsertions, changes)
    return in_order


def _scram_result(
    outcome: tuple[UserScramChange, KafkaError | None],
) -> AlterUserScramCredentialsResult:
    change, error = outcome
    return AlterUserScramCredentialsResult(
        user=change.name,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
    )
