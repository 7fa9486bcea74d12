"""Arguments of several commands of transactions."""

import click

from metaquorum.cli.admin.common.session import completions
from metaquorum.client.transactions.blocking import BlockingTransactionAdmin


def complete_transactional_ids(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    return completions(
        ctx,
        incomplete,
        lambda cluster: [
            each.transactional_id
            for each in BlockingTransactionAdmin(cluster).list_transactions().transactions
        ],
    )
