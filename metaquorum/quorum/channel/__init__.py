"""Authenticated, ordered message streams between nodes, and the RPC and Raft peers on top of them.

Imports `metaquorum.quorum.raft`, `security` and below. Network I/O through the `Network` interface
only; `handshake`, `frames` and `calls` are plain state. Start with `endpoint`.
"""

from metaquorum.quorum.channel.endpoint import Endpoint
from metaquorum.quorum.channel.handshake import HandshakeError
from metaquorum.quorum.channel.identity import (
    TOOL_ID,
    ChannelIdentity,
    SecretError,
    StreamKind,
    create_secret,
    read_secret,
    require_secret,
)
from metaquorum.quorum.channel.listener import ChannelListener
from metaquorum.quorum.channel.mesh import PeerMesh
from metaquorum.quorum.channel.rpc_client import (
    CallError,
    CallLostError,
    CallNotSentError,
    RemoteError,
    RpcClient,
)
from metaquorum.quorum.channel.rpc_server import Caller, Handler, RpcServer
from metaquorum.quorum.channel.stream import Cause, End, Stream
from metaquorum.quorum.channel.timing import ChannelTimings

__all__ = [
    "TOOL_ID",
    "CallError",
    "CallLostError",
    "CallNotSentError",
    "Caller",
    "Cause",
    "ChannelIdentity",
    "ChannelListener",
    "ChannelTimings",
    "End",
    "Endpoint",
    "Handler",
    "HandshakeError",
    "PeerMesh",
    "RemoteError",
    "RpcClient",
    "RpcServer",
    "SecretError",
    "Stream",
    "StreamKind",
    "create_secret",
    "read_secret",
    "require_secret",
]
