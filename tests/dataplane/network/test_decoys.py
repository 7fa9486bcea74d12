"""The SCRAM challenge before authentication does not reveal which users exist."""

import base64
from typing import Any, NamedTuple

from metaquorum.client.administration.users import new_upsertion
from metaquorum.quorum.controller.scram_changes import ScramUpsertion, UserScramChange
from metaquorum.security.scram import DEFAULT_ITERATIONS, SALT_BYTES, ScramMechanism
from metaquorum.wire.primitives.errors import ErrorCode
from tests.dataplane.changes import change_scram_credentials
from tests.dataplane.network.test_sasl_authenticator import authenticate, handshake, log_in, secured
from tests.dataplane.replication.together import NODES, Together, run_together
from tests.dataplane.serving import RawClient, Simulated, listening

MECHANISMS = tuple(ScramMechanism)
FORM = (SALT_BYTES, DEFAULT_ITERATIONS)


class Challenge(NamedTuple):
    """The salt and the iteration count of a server-first-message."""

    salt: bytes
    iterations: int

    @property
    def form(self) -> tuple[int, int]:
        return len(self.salt), self.iterations


async def challenge(node: Simulated, user: str, mechanism: ScramMechanism) -> Challenge:
    return await challenge_by(await node.connect(), user, mechanism)


async def challenge_by(client: RawClient, user: str, mechanism: ScramMechanism) -> Challenge:
    assert (await handshake(client, mechanism.sasl_name)).error_code == 0
    answer = await authenticate(client, f"n,,n={user},r=abcdef".encode())
    client.connection.close()
    fields = dict(part.split("=", 1) for part in bytes(answer.auth_bytes).decode().split(","))
    return Challenge(base64.b64decode(fields["s"]), int(fields["i"]))


async def challenges(node: Simulated, *users: str) -> list[Challenge]:
    return [await challenge(node, user, each) for user in users for each in MECHANISMS]


async def change(node: Simulated, wanted: UserScramChange) -> None:
    await change_scram_credentials(node.worker.controller_client, wanted)
    await node.world.sleep(1)


async def create(node: Simulated, user: str, password: str, *mechanisms: ScramMechanism) -> None:
    """Create a user with SCRAM credentials, as `mq-admin users create` with its defaults."""
    made = [new_upsertion(user, each, password, DEFAULT_ITERATIONS) for each in mechanisms]
    upsertions = tuple(
        ScramUpsertion(each.mechanism, each.iterations, each.salt, each.salted_password)
        for each in made
    )
    await change(node, UserScramChange(user, upsertions=upsertions))


async def restart(node: Simulated) -> None:
    await node.on_machine.stop()
    await node.on_machine.start()


@secured()
async def test_a_decoy_has_the_form_of_a_user_created_with_the_defaults(node: Simulated) -> None:
    await create(node, "carol", "pencil", *MECHANISMS)
    shown = await challenges(node, "carol", "nobody", "n" * 300)
    assert {each.form for each in shown} == {FORM}
    assert len({each.salt for each in shown}) == len(shown), "no salt is shown twice"


@secured()
async def test_a_decoy_is_the_same_after_a_restart_without_a_secret(node: Simulated) -> None:
    before = await challenges(node, "nobody", "somebody")
    await restart(node)
    assert await challenges(node, "nobody", "somebody") == before


def test_every_worker_shows_the_same_decoy_before_and_after_a_kill() -> None:
    def options(node_id: int) -> dict[str, Any]:
        return listening(
            {
                "listeners": f"PLAINTEXT://node-{node_id}:9092,OUTSIDE://node-{node_id}:9094",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
                "inter.broker.listener.name": "PLAINTEXT",
                "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            }
        )

    async def scenario(cluster: Together) -> None:
        async def shown() -> set[tuple[Challenge, ...]]:
            found = set()
            for node_id in NODES:
                clients = [await cluster.connect(node_id, 9094) for _ in MECHANISMS]
                answers = [
                    await challenge_by(client, "nobody", mechanism)
                    for client, mechanism in zip(clients, MECHANISMS, strict=True)
                ]
                found.add(tuple(answers))
            return found

        before = await shown()
        assert len(before) == 1
        await cluster.kill(2)
        await cluster.restart(2)
        assert await shown() == before

    run_together(scenario, node_options=options)


@secured()
async def test_a_user_of_one_mechanism_has_a_decoy_of_the_other(node: Simulated) -> None:
    other, own = MECHANISMS
    before = await challenge(node, "carol", other)
    await create(node, "carol", "pencil", own)
    assert await challenge(node, "carol", other) == before
    assert (await challenge(node, "carol", own)).form == before.form == FORM


@secured()
async def test_a_deleted_user_is_shown_with_the_salt_that_it_had(node: Simulated) -> None:
    """The same after a restart; and the user's former password is refused."""
    own = MECHANISMS[0]
    await create(node, "carol", "pencil", own)
    shown = await challenges(node, "carol")
    await change(node, UserScramChange("carol", (int(own),)))
    assert await challenges(node, "carol") == shown
    await restart(node)
    assert await challenges(node, "carol") == shown
    refused = await log_in(await node.connect(), own.sasl_name, "carol", "pencil")
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    await create(node, "carol", "another", own)
    assert await challenge(node, "carol", own) != shown[0]
    answer = await log_in(await node.connect(), own.sasl_name, "carol", "another")
    assert answer.error_code == 0
