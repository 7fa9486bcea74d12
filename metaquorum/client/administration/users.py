"""Management of the SCRAM credentials of any Kafka-compatible cluster (KIP-554).

The client sends the salted password, never the password, as Kafka's own client does. The salted
password also suffices to log in, so that it requires TLS as much as a password.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from metaquorum.client.cluster import CONTROLLER, Cluster
from metaquorum.client.errors import BrokerError, broker_error
from metaquorum.security.scram import BY_SASL_NAME, SALT_BYTES, ScramMechanism, salted_password
from metaquorum.wire.primitives.errors import ErrorCode

if TYPE_CHECKING:
    from metaquorum.wire.messages.alter_user_scram_credentials import (
        ScramCredentialDeletion,
        ScramCredentialUpsertion,
    )

DEFAULT_MECHANISM: Final = "SCRAM-SHA-512"

# Iterations by mechanism name.
Credentials: TypeAlias = dict[str, int]


async def describe_users(
    cluster: Cluster, names: Sequence[str] | None
) -> dict[str, Credentials | BrokerError]:
    """Return credentials by user name; `names` None: of all users with credentials.

    The value is a BrokerError for a user that cannot be described.
    """
    from metaquorum.wire.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsRequest,
        DescribeUserScramCredentialsResponse,
        UserName,
    )

    users = None if names is None else [UserName(name=name) for name in names]
    response: DescribeUserScramCredentialsResponse = await cluster.call(
        DescribeUserScramCredentialsRequest(users=users)
    )
    if response.error_code:
        raise broker_error(response.error_code, response.error_message, "users")
    found: dict[str, Credentials | BrokerError] = {}
    for result in sorted(response.results, key=lambda each: each.user):
        if result.error_code:
            subject = f"user {result.user}"
            found[result.user] = broker_error(result.error_code, result.error_message, subject)
        else:
            found[result.user] = {
                _mechanism_name(info.mechanism): info.iterations for info in result.credential_infos
            }
    return found


def _mechanism_name(number: int) -> str:
    known = {int(mechanism): mechanism.sasl_name for mechanism in ScramMechanism}
    return known.get(number, f"mechanism {number}")


def mechanism_named(name: str) -> ScramMechanism:
    """Return the mechanism with this SASL name. Raises ValueError if it is unknown."""
    mechanism = BY_SASL_NAME.get(name)
    if mechanism is None:
        raise ValueError(f"the mechanism must be one of {', '.join(BY_SASL_NAME)}, not {name}")
    return mechanism


async def set_password(
    cluster: Cluster, user: str, password: str, mechanisms: Sequence[str], iterations: int
) -> None:
    """Set a password for `mechanisms`; credentials of other mechanisms stay unchanged.

    Sends one request per mechanism, since Kafka accepts one change of a user in a request; each is
    sent at most once. Raises ValueError if a mechanism is unknown, and BrokerError on refusal.
    """
    for mechanism in map(mechanism_named, mechanisms):
        await _alter(cluster, user, [], [new_upsertion(user, mechanism, password, iterations)])


def new_upsertion(
    user: str, mechanism: ScramMechanism, password: str, iterations: int
) -> ScramCredentialUpsertion:
    """Return the credential with a new random salt, for AlterUserScramCredentials."""
    from metaquorum.wire.messages.alter_user_scram_credentials import ScramCredentialUpsertion

    salt = secrets.token_bytes(SALT_BYTES)
    return ScramCredentialUpsertion(
        name=user,
        mechanism=int(mechanism),
        iterations=iterations,
        salt=salt,
        salted_password=salted_password(mechanism, password, salt, iterations),
    )


async def delete_credentials(cluster: Cluster, user: str, mechanisms: Sequence[str]) -> None:
    """Delete the credentials of a user for `mechanisms`. Raises BrokerError on refusal."""
    from metaquorum.wire.messages.alter_user_scram_credentials import (
        ScramCredentialDeletion as Deletion,
    )

    for mechanism in map(mechanism_named, mechanisms):
        deletion = Deletion(name=user, mechanism=int(mechanism))
        await _alter(cluster, user, [deletion], [])


async def _alter(
    cluster: Cluster,
    user: str,
    deletions: list[ScramCredentialDeletion],
    upsertions: list[ScramCredentialUpsertion],
) -> None:
    from metaquorum.wire.messages.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        AlterUserScramCredentialsResponse,
    )

    request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    response: AlterUserScramCredentialsResponse = await cluster.call(
        request, to=CONTROLLER, changes=True
    )
    for result in response.results:
        if result.error_code:
            raise broker_error(result.error_code, result.error_message, f"user {user}")


def is_unknown(found: Credentials | BrokerError) -> bool:
    """Return whether a result of `describe_users` means that the user does not exist."""
    return isinstance(found, BrokerError) and found.code is ErrorCode.RESOURCE_NOT_FOUND
