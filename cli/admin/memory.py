"""mq-admin cluster memory."""

import click

from metaquorum.cli.admin.common.session import INT32_MAX, Session, session_command
from metaquorum.cli.common.output import Column, Row
from metaquorum.client.usage.coordinator_memory import STATE_OF, CoordinatorBudget

_COLUMNS = (
    Column("worker"),
    Column("state"),
    Column("client"),
    Column("used_bytes", "used"),
    Column("counted_bytes", "counted"),
    Column("limit_bytes", "limit"),
    Column("share", "share"),
    Column("refused"),
)
MOST_NAMES = 1000


@click.command("memory")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Number of clients of each budget.",
)
@click.option("--node", type=click.IntRange(0, INT32_MAX), help="[default: all workers]")
@click.option(
    "--client",
    metavar="NAME",
    help="List the groups and transactional ids of this client.",
)
@session_command
def memory_command(session: Session, limit: int, node: int | None, client: str | None) -> None:
    """Show which clients use the memory of the coordinators, and how much is left.

    A worker has budgets for groups, committed offsets and transactional ids. A client is a
    principal, or an address without authentication; one without a name has what was loaded from a
    log and was not used since. Above half of a budget, a client that has more than its share is
    refused new state. `mq-admin groups delete` and `mq-admin transactions remove` free memory.

    \b
    Examples:
      mq-admin cluster memory
      mq-admin cluster memory --client 192.0.2.7
      mq-admin cluster memory --limit 20 -o json
    """
    nodes = [each.node_id for each in session.admin.describe_cluster().nodes]
    rows: list[Row] = []
    for worker in nodes if node is None else [node]:
        if client is not None:
            rows += _names(session, worker, client)
            continue
        for budget in session.admin.describe_coordinator_memory(worker, most_used=limit).budgets:
            rows += _rows(budget)
    if client is not None:
        session.show_rows(rows, (Column("worker"), Column("state"), Column("name")))
        return
    session.show_rows(rows, _COLUMNS)


def _rows(budget: CoordinatorBudget) -> list[Row]:
    """Return a row for all clients, and one for each."""
    common = {"worker": budget.worker, "state": budget.state}
    rows: list[Row] = [
        common
        | {
            "client": None,
            "used_bytes": budget.used_bytes,
            "counted_bytes": budget.counted_bytes,
            "limit_bytes": budget.limit_bytes,
            "share": f"{budget.share:.0%}",
            "refused": budget.refused_share_count + budget.refused_full_count,
        }
    ]
    for each in budget.clients:
        rows.append(
            common
            | {
                "client": each.client or "(loaded)",
                "used_bytes": each.admitted_bytes + each.grown_bytes,
                "counted_bytes": each.counted_bytes,
                "limit_bytes": None,
                "share": f"{each.counted_bytes / budget.limit_bytes:.0%}",
                "refused": None,
            }
        )
    return rows


def _names(session: Session, worker: int, client: str) -> list[Row]:
    rows: list[Row] = []
    for budget, state in STATE_OF.items():
        found = session.admin.describe_coordinator_memory(
            worker, budget=budget, client=client, most_names=MOST_NAMES
        )
        rows += [{"worker": worker, "state": state, "name": name} for name in found.names]
    return rows
