"""mq-admin quotas record: live usage as a profile for `simulate`."""

import json
import time

import click

from metaquorum.cli.admin.common.session import REFUSED, Session, session_command
from metaquorum.cli.admin.quotas.explain import ANONYMOUS
from metaquorum.cli.admin.quotas.traffic import MAX_SECONDS
from metaquorum.client.usage.quota_use import QuotaClient
from metaquorum.metadata.quota_lookup import CONSUMER_BYTE_RATE, OBSERVED, PRODUCER_BYTE_RATE


@click.command("record", short_help="Record the usage of a client, for simulate.")
@click.option(
    "--user", metavar="NAME", default=ANONYMOUS, help="[default: unauthenticated clients]"
)
@click.option("--client-id", metavar="NAME", help="[default: clients without one]")
@click.option("--consumer", is_flag=True, help="Record consumed instead of produced bytes.")
@click.option(
    "--seconds", type=click.FloatRange(0.1, MAX_SECONDS), default=60.0, help="[default: 60]"
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    metavar="SECONDS",
    help="[default: 1]",
)
@session_command
def command(
    session: Session,
    user: str,
    client_id: str | None,
    consumer: bool,
    seconds: float,
    interval_s: float,
) -> None:
    """Print the bytes of a client in each interval, summed over all workers, as JSON.

    Clients that share the quota are counted together. Workers count only clients with a quota; an
    observed quota is enough.

    \b
    Examples:
      mq-admin quotas record --client-id loader --seconds 300 > traffic.json
      mq-admin quotas simulate --quota 1MB --profile-file traffic.json
    """
    key = CONSUMER_BYTE_RATE if consumer else PRODUCER_BYTE_RATE
    client = QuotaClient(user, client_id)
    before = _totals(session, client, key)
    if not before:
        session.note(f"mq-admin: no {key} applies to the client, so workers do not count its usage")
        session.note(f"  `mq-admin quotas set ... {OBSERVED}{key}=1GB` makes workers count it")
        click.get_current_context().exit(REFUSED)
    sizes = []
    due = time.monotonic()
    for _ in range(max(1, round(seconds / interval_s))):
        due += interval_s
        time.sleep(max(0.0, due - time.monotonic()))
        now = _totals(session, client, key)
        # A lower total than before means that a worker restarted its count.
        sizes.append(
            sum(
                total - (before.get(worker, 0.0) if total >= before.get(worker, 0.0) else 0.0)
                for worker, total in now.items()
            )
        )
        before = now
    click.echo(json.dumps({"interval_s": interval_s, "bytes": [round(size) for size in sizes]}))


def _totals(session: Session, client: QuotaClient, key: str) -> dict[int, float]:
    """Return the total of each worker to which a quota of the client applies."""
    totals: dict[int, float] = {}
    for node in session.admin.describe_cluster().nodes:
        described = session.admin.describe_quota_use(node.node_id, [client])
        by_key = {use.key: use.used_total for use in described.of_clients[0]}
        total = by_key.get(key, by_key.get(OBSERVED + key))
        if total is not None:
            totals[node.node_id] = total
    return totals
