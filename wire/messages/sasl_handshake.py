"""SaslHandshake (17): selects the SASL mechanism of a client. KIP-43, KIP-152.

Never flexible (KAFKA-9577). After version 0 the mechanism's own messages follow as frames without a
header; after version 1, in SaslAuthenticate.
"""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, array, int16, string


class SaslHandshakeRequest(Message, api=17, versions="0-1", flexible="2+"):
    mechanism: str = string()


class SaslHandshakeResponse(Message, api=17, versions="0-1", flexible="2+"):
    error_code: int = int16()
    mechanisms: list[str] = array(string)
