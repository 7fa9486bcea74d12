"""The APIs of ACLs: all are refused, because there is no authorizer."""

from metaquorum.wire.messages.create_acls import CreateAclsRequest
from metaquorum.wire.messages.delete_acls import DeleteAclsRequest
from metaquorum.wire.messages.describe_acls import DescribeAclsRequest
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.serving import Simulated, simulated
from tests.wire.messages.golden import exchanges


@simulated()
async def test_acls_are_refused_as_by_a_real_kafka_without_an_authorizer(node: Simulated) -> None:
    client = await node.connect()
    for key, asked_for in (
        (ApiKey.DESCRIBE_ACLS, DescribeAclsRequest),
        (ApiKey.CREATE_ACLS, CreateAclsRequest),
        (ApiKey.DELETE_ACLS, DeleteAclsRequest),
    ):
        for version, asked, golden in exchanges(key, asked_for):
            assert await client.call(key, asked, version) == golden
