"""ApiVersions shows the levels of features, by which clients choose their protocol."""

from typing import Any

from metaquorum.wire.messages.api_versions import ApiVersionsRequest
from metaquorum.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.test_admin_changes import change
from tests.dataplane.replication.together import NODES, Together, together
from tests.dataplane.serving import Simulated, run_simulated

UPGRADE, SAFE_DOWNGRADE = 1, 2
BROKER = 4
NAME = "transaction.version"


async def versions(cluster: Together, node_id: int, version: int = 4) -> Any:
    client = await cluster.connect(node_id)
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    return await client.call(ApiKey.API_VERSIONS, request, version)


def finalized(answer: Any) -> int:
    """Return the level; a client takes 0 if the feature is absent."""
    levels = {row.name: row for row in answer.finalized_features}
    row = levels.get(NAME)
    if row is None:
        return 0
    assert row.min_version_level == row.max_version_level
    return int(row.max_version_level)


@together()
async def test_every_worker_shows_a_level_that_was_changed_with_a_newer_epoch(
    cluster: Together,
) -> None:
    epochs = {}
    for node_id in NODES:
        answer = await versions(cluster, node_id)
        supported = {row.name: row for row in answer.supported_features}
        assert (supported[NAME].min_version, supported[NAME].max_version) == (0, 2)
        assert finalized(answer) == 2
        epochs[node_id] = answer.finalized_features_epoch
    admin = await cluster.connect(1)
    for level in (1, 0, 1, 2):
        now = finalized(await versions(cluster, 1))
        kind = UPGRADE if level > now else SAFE_DOWNGRADE
        update = FeatureUpdateKey(feature=NAME, max_version_level=level, upgrade_type=kind)
        changed = await admin.call(
            ApiKey.UPDATE_FEATURES, UpdateFeaturesRequest(feature_updates=[update])
        )
        assert changed.error_code == 0
        # The worker that was asked has the level; the others receive it without a request.
        assert finalized(await versions(cluster, 1)) == level
        for node_id in NODES:
            await cluster.until(lambda of=node_id, to=level: shown(cluster, of) == to, limit_s=1.0)
            answer = await versions(cluster, node_id)
            assert finalized(answer) == level
            assert answer.finalized_features_epoch > epochs[node_id]
            epochs[node_id] = answer.finalized_features_epoch


def shown(cluster: Together, node_id: int) -> int:
    return int(cluster.worker(node_id).image.features.get(NAME, 0))


@together()
async def test_older_clients_do_not_get_a_feature_whose_lowest_level_is_0(
    cluster: Together,
) -> None:
    answer = await versions(cluster, 1, 3)
    assert NAME not in {row.name for row in answer.supported_features}
    assert finalized(answer) == 2


def test_verification_can_be_switched_off_and_on_while_a_node_runs() -> None:
    config = "transaction.partition.verification.enable"

    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        assert node.worker.verifies_transactions
        for text, verifies in (("false", False), (None, True)):
            assert await change(client, BROKER, "1", {config: text}) == 0
            assert node.worker.verifies_transactions is verifies
        refused = await change(client, BROKER, "1", {"transaction.max.timeout.ms": 1000})
        assert refused != 0  # not dynamic, as in Kafka

    run_simulated(scenario)
