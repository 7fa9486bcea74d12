"""mq-admin transactions remove."""

import click

from metaquorum.cli.admin.common.session import Session, session_command, yes_option
from metaquorum.cli.admin.transactions.options import complete_transactional_ids

# Ids of a client that are removed at a time.
AT_ONCE = 1000
_BUDGET = "transaction.memory.max.bytes"


@click.command("remove", short_help="Remove transactional ids that no producer needs.")
@click.argument(
    "transactional_ids", metavar="[ID...]", nargs=-1, shell_complete=complete_transactional_ids
)
@click.option(
    "--client",
    metavar="NAME",
    help="Remove all ids of this client, as `mq-admin cluster memory` shows it.",
)
@yes_option
@session_command
def remove_command(
    session: Session, transactional_ids: tuple[str, ...], client: str | None, yes: bool
) -> None:
    """Remove transactional ids, which frees their memory at the coordinator.

    The coordinator removes an id by itself after transactional.id.expiration.ms without use. An id
    with an open transaction is kept: `mq-admin transactions abort` ends that. A producer that still
    has a removed id gets an error at its next transaction, and initializes again.

    \b
    Examples:
      mq-admin transactions remove billing-1 billing-2
      mq-admin transactions remove --client User:loader --yes
      mq-admin transactions remove --client 192.0.2.7
    """
    if bool(transactional_ids) is (client is not None):
        raise click.UsageError("specify transactional ids, or --client")
    if client is None:
        once = tuple(dict.fromkeys(transactional_ids))
        many = "transactional id" if len(once) == 1 else f"{len(once)} transactional ids"
        session.ask(f"Remove {many} {', '.join(once)}?", yes)
        session.say_each(session.transactions.remove_ids(once), "removed")
        return
    session.ask(f"Remove all transactional ids of the client {client}?", yes)
    removed = 0
    for node in session.admin.describe_cluster().nodes:
        removed += _remove_all(session, node.node_id, client)
    session.say(f"{removed} transactional ids of {client} removed")


def _remove_all(session: Session, worker: int, client: str) -> int:
    """Remove the ids of the client on one worker; return their number, and report errors."""
    removed = 0
    while True:
        names = session.admin.describe_coordinator_memory(
            worker, budget=_BUDGET, client=client, most_names=AT_ONCE
        ).names
        outcomes = session.transactions.remove_ids(names) if names else {}
        done = sum(error is None for error in outcomes.values())
        removed += done
        if not done or len(names) < AT_ONCE:
            for error in outcomes.values():
                if error is not None:
                    session.report(error)
            return removed
