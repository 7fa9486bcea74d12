"""SCRAM credentials; and ACLs, of which there are none: who is let in may do everything."""

from collections import Counter
from typing import Final

from dataplane.worker import Request, Worker
from metaquorum.scram_changes import ScramUpsertion, UserScramChange
from wire.errors import ErrorCode
from wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from wire.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

_NO_AUTHORIZER: Final = "No Authorizer is configured."
# The request has no time of its own.
ALTER_S: Final = 30.0


def handle_describe_acls(
    worker: Worker, request: Request, message: DescribeAclsRequest
) -> DescribeAclsResponse:
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER
    )


def handle_create_acls(
    worker: Worker, request: Request, message: CreateAclsRequest
) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=[
            AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)
            for _ in message.creations
        ]
    )


def handle_delete_acls(
    worker: Worker, request: Request, message: DeleteAclsRequest
) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(
                error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER
            )
            for _ in message.filters
        ]
    )


def handle_describe_user_scram_credentials(
    worker: Worker, request: Request, message: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """KIP-554: without names, everybody who has any."""
    known: dict[str, list[CredentialInfo]] = {}
    for (name, mechanism), record in worker.image.scram.in_order():
        info = CredentialInfo(mechanism=mechanism, iterations=record.iterations)
        known.setdefault(name, []).append(info)
    asked = (
        Counter(user.name for user in message.users) if message.users else dict.fromkeys(known, 1)
    )
    results = []
    for name, count in asked.items():
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
        results.append(result)
    return DescribeUserScramCredentialsResponse(results=results)


async def handle_alter_user_scram_credentials(
    worker: Worker, request: Request, message: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    deletions: dict[str, list[int]] = {}
    upsertions: dict[str, list[ScramUpsertion]] = {}
    for deletion in message.deletions:
        deletions.setdefault(deletion.name, []).append(deletion.mechanism)
    for upsertion in message.upsertions:
        upsertions.setdefault(upsertion.name, []).append(
            ScramUpsertion(
                upsertion.mechanism,
                upsertion.iterations,
                bytes(upsertion.salt),
                bytes(upsertion.salted_password),
            )
        )
    changes = [
        UserScramChange(name, tuple(deletions.get(name, ())), tuple(upsertions.get(name, ())))
        for name in dict.fromkeys((*deletions, *upsertions))
    ]
    outcomes = await worker.gateway.change_scram_credentials(
        request.asker, changes, timeout_s=ALTER_S
    )
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=change.name,
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
            )
            for change, error in zip(changes, outcomes, strict=True)
        ]
    )


def handle_sasl_handshake(
    worker: Worker, request: Request, message: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """On a listener without SASL; on others `authentication` is there first."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def handle_sasl_authenticate(
    worker: Worker, request: Request, message: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
