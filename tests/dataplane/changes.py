"""Changes of the metadata that a test needs: each is committed, and visible at the worker."""

from metaquorum.quorum.controller.quota_changes import QuotaChange
from metaquorum.quorum.controller.scram_changes import UserScramChange
from metaquorum.quorum.rpc.controller_client import ControllerClient
from metaquorum.quorum.rpc.methods import (
    CHANGE_QUOTAS,
    CHANGE_SCRAM_CREDENTIALS,
    ChangeQuotas,
    ChangeScramCredentials,
    RequestContext,
)

TIMEOUT_S = 20.0


async def change_quotas(controller_client: ControllerClient, *changes: QuotaChange) -> None:
    errors = await controller_client.change_each(
        CHANGE_QUOTAS,
        changes,
        lambda part: ChangeQuotas(RequestContext(), part),
        timeout_s=TIMEOUT_S,
    )
    assert errors == [None] * len(changes)


async def change_scram_credentials(
    controller_client: ControllerClient, *users: UserScramChange
) -> None:
    errors = await controller_client.change_each(
        CHANGE_SCRAM_CREDENTIALS,
        users,
        lambda part: ChangeScramCredentials(RequestContext(), part),
        timeout_s=TIMEOUT_S,
    )
    assert errors == [None] * len(users)
