"""DescribeAcls, CreateAcls and DeleteAcls: there is no authorizer, all return SECURITY_DISABLED."""

from typing import Final

from metaquorum.dataplane.scheduling.time_slices import in_pieces
from metaquorum.dataplane.worker.context import Request
from metaquorum.wire.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from metaquorum.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from metaquorum.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from metaquorum.wire.primitives.errors import ErrorCode

# Both texts are Kafka's: DescribeAcls has its own.
_NO_AUTHORIZER: Final = "No Authorizer is configured."
_NOTHING_TO_DESCRIBE: Final = "No Authorizer is configured on the broker"


def handle_describe_acls(
    worker: object, request: Request, message: DescribeAclsRequest
) -> DescribeAclsResponse:
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=_NOTHING_TO_DESCRIBE
    )


async def handle_create_acls(
    worker: object, request: Request, message: CreateAclsRequest
) -> CreateAclsResponse:
    results = await in_pieces(
        message.creations,
        lambda _: AclCreationResult(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER
        ),
    )
    return CreateAclsResponse(results=results)


async def handle_delete_acls(
    worker: object, request: Request, message: DeleteAclsRequest
) -> DeleteAclsResponse:
    results = await in_pieces(
        message.filters,
        lambda _: DeleteAclsFilterResult(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER
        ),
    )
    return DeleteAclsResponse(filter_results=results)
