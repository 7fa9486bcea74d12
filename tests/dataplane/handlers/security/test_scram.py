"""SCRAM credentials, by the wire; rules:
`tests/metaquorum/quorum/controller/test_scram_changes.py`."""

from metaquorum.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from metaquorum.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.serving import Simulated, run_simulated
from tests.wire.messages.golden import exchanges, in_any_order


def test_scram_credentials_are_changed_and_described_as_a_real_kafka_does_it() -> None:
    altering, describing = (
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    )
    changes = exchanges(altering, AlterUserScramCredentialsRequest)
    descriptions = exchanges(describing, DescribeUserScramCredentialsRequest)
    per_change = len(descriptions) // (len(changes) + 1)

    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        for number in range(len(changes) + 1):
            if number:
                version, asked, golden = changes[number - 1]
                answer = await client.call(altering, asked, version)
                assert in_any_order(answer.results) == in_any_order(golden.results), asked
            for version, asked, golden in descriptions[number * per_change :][:per_change]:
                answer = await client.call(describing, asked, version)
                assert answer.error_code == golden.error_code
                assert in_any_order(answer.results) == in_any_order(golden.results), asked

    run_simulated(scenario)
