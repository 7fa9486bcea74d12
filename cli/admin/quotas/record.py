"""mq-admin quotas record: live use as a profile that `simulate` takes."""

import json
import time

import click

from cli.admin.common.session import REFUSED, Session, session_command
from cli.admin.quotas.explain import ANONYMOUS
from cli.admin.quotas.traffic import MAX_SECONDS
from metaquorum.client.quota_use import QuotaClient
from metaquorum.metadata.quota_lookup import CONSUMER_BYTE_RATE, OBSERVED, PRODUCER_BYTE_RATE


@click.command("record", short_help="Record what a client uses, for simulate.")
@click.option("--user", metavar="NAME", default=ANONYMOUS, help="[default: who has not logged in]")
@click.option("--client-id", metavar="NAME", help="[default: a client that gives none]")
@click.option("--consumer", is_flag=True, help="What it is given, not what it sends.")
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
    """Write how many bytes a client uses in each interval, on all workers together, as JSON.

    With whom it shares a quota is recorded with it. Workers count who has a quota, if only one that
    is observed.

    \b
    Examples:
      mq-admin quotas record --client-id loader --seconds 300 > traffic.json
      mq-admin quotas simulate --quota 1MB --profile-file traffic.json
    """
    key = CONSUMER_BYTE_RATE if consumer else PRODUCER_BYTE_RATE
    client = QuotaClient(user, client_id)
    before = _totals(session, client, key)
    if not before:
        session.note(f"mq-admin: no {key} applies to it, so that nobody counts what it uses")
        session.note(f"  `mq-admin quotas set ... {OBSERVED}{key}=1GB` has it counted")
        click.get_current_context().exit(REFUSED)
    sizes = []
    due = time.monotonic()
    for _ in range(max(1, round(seconds / interval_s))):
        due += interval_s
        time.sleep(max(0.0, due - time.monotonic()))
        now = _totals(session, client, key)
        # A worker that has begun to count anew has counted less than before.
        sizes.append(
            sum(
                total - (before.get(worker, 0.0) if total >= before.get(worker, 0.0) else 0.0)
                for worker, total in now.items()
            )
        )
        before = now
    click.echo(json.dumps({"interval_s": interval_s, "bytes": [round(size) for size in sizes]}))


def _totals(session: Session, client: QuotaClient, key: str) -> dict[int, float]:
    """What each worker has counted so far; none where no quota applies."""
    totals: dict[int, float] = {}
    for node in session.admin.describe_cluster().nodes:
        described = session.admin.describe_quota_use(node.node_id, [client])
        by_key = {use.key: use.used_total for use in described.of_clients[0]}
        total = by_key.get(key, by_key.get(OBSERVED + key))
        if total is not None:
            totals[node.node_id] = total
    return totals
