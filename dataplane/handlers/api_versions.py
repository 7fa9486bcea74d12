"""ApiVersions: the served APIs, from their table, and the feature levels."""

import re
from typing import Final

from metaquorum.dataplane.worker.capabilities import HasImage
from metaquorum.dataplane.worker.context import Request
from metaquorum.quorum.controller.features import SUPPORTED_FEATURES
from metaquorum.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import APIS

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")  # KIP-511
_NAMES_SINCE: Final = 3
_ZERO_LEVELS_SINCE: Final = 4  # older clients fail on a feature with level 0


def handle_api_versions(
    worker: HasImage, request: Request, message: ApiVersionsRequest
) -> ApiVersionsResponse:
    if request.version >= _NAMES_SINCE:
        software = (message.client_software_name, message.client_software_version)
        if not all(_SOFTWARE.fullmatch(text) for text in software):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        request.client.software = software
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for api in APIS.values()
        ],
        supported_features=[
            SupportedFeatureKey(name=f.name, min_version=f.least, max_version=f.most)
            for f in SUPPORTED_FEATURES
            if f.least > 0 or request.version >= _ZERO_LEVELS_SINCE
        ],
        finalized_features_epoch=worker.image.end_offset,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in worker.image.features.items()
        ],
    )
