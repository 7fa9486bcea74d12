"""ACLs and SCRAM credentials, as they stand where everybody may do everything: there are none."""

from collections import Counter
from typing import Final

from dataplane.worker import Request, Worker
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
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

_NO_AUTHORIZER: Final = "No Authorizer is configured."
_MECHANISMS: Final = frozenset((1, 2))  # SCRAM-SHA-256, SCRAM-SHA-512


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
    """No user has any; asked for by name, that is an error (KIP-554)."""
    results = []
    for name, count in Counter(user.name for user in message.users or ()).items():
        code = ErrorCode.RESOURCE_NOT_FOUND
        reason = f"Attempt to describe a user credential that does not exist: {name}"
        if count > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            reason = f"Cannot describe SCRAM credentials for the same user twice: {name}"
        results.append(
            DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=reason)
        )
    return DescribeUserScramCredentialsResponse(results=results)


def handle_alter_user_scram_credentials(
    worker: Worker, request: Request, message: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Nothing to delete, and nothing is taken that no listener would ask for."""
    outcomes: dict[str, tuple[ErrorCode, str]] = {}
    for upsertion in message.upsertions:
        outcomes[upsertion.name] = (
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "SCRAM credentials cannot be stored: this version authenticates nobody",
        )
    for deletion in message.deletions:
        if deletion.mechanism not in _MECHANISMS:
            outcomes[deletion.name] = (
                ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                "Unknown SCRAM mechanism",
            )
        elif deletion.name not in outcomes:
            outcomes[deletion.name] = (
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=name, error_code=code, error_message=reason)
            for name, (code, reason) in outcomes.items()
        ]
    )
