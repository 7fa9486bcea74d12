"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken.

There are no delegation tokens, as in a Kafka without `delegation.token.secret.key`. The APIs are
announced because tools take a cluster without them for Kafka 1.0.

    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED   the client has not authenticated
    DELEGATION_TOKEN_AUTH_DISABLED         it has
"""

from typing import Final

from metaquorum.dataplane.scheduling.time_slices import pause, pieces
from metaquorum.dataplane.worker.context import Request
from metaquorum.quorum.rpc.methods import ANONYMOUS
from metaquorum.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from metaquorum.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from metaquorum.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from metaquorum.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode

_USER: Final = "User"  # the one type of a principal


def _no_time(code: ErrorCode) -> int:
    """Return what Kafka answers for a time: a controller that gives no tokens leaves it 0."""
    return 0 if code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED else -1


def _refusal(request: Request) -> ErrorCode:
    if request.client.principal == ANONYMOUS:
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


async def handle_create_delegation_token(
    worker: object, request: Request, message: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    code = _refusal(request)
    if code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED:
        for renewers in pieces(message.renewers):
            if any(renewer.principal_type != _USER for renewer in renewers):
                code = ErrorCode.INVALID_PRINCIPAL_TYPE
            await pause()
    requester_type, _, requester = request.client.principal.partition(":")
    owner_type, owner = message.owner_principal_type or _USER, message.owner_principal_name
    if not owner:
        owner_type, owner = requester_type, requester
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner_type,
        principal_name=owner,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester,
        issue_timestamp_ms=_no_time(code),
        expiry_timestamp_ms=_no_time(code),
        max_timestamp_ms=_no_time(code),
    )


def handle_renew_delegation_token(
    worker: object, request: Request, message: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    code = _refusal(request)
    return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=_no_time(code))


def handle_expire_delegation_token(
    worker: object, request: Request, message: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    code = _refusal(request)
    return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=_no_time(code))


def handle_describe_delegation_token(
    worker: object, request: Request, message: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=_refusal(request))
