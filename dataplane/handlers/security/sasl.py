"""SaslHandshake and SaslAuthenticate outside authentication: both return ILLEGAL_SASL_STATE.

On listeners with SASL, `metaquorum.dataplane.network.sasl_authenticator` answers both.
"""

from metaquorum.dataplane.worker.context import Request
from metaquorum.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from metaquorum.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from metaquorum.wire.primitives.errors import ErrorCode


def handle_sasl_handshake(
    worker: object, request: Request, message: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def handle_sasl_authenticate(
    worker: object, request: Request, message: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
