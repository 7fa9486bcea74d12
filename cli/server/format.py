"""mq-server format, cluster-id and secret: preparation of nodes before their first start.

A node formats an empty data directory when it starts; `format` does this separately, as Kafka's
storage tool does.
"""

import os
import sys
from random import SystemRandom

import click

from metaquorum.cli.common.usage import UsageError
from metaquorum.cli.server.quorum_options import cluster_id_option
from metaquorum.cli.server.scram_option import scram_records
from metaquorum.quorum.channel.identity import SecretError, create_secret
from metaquorum.quorum.storage.bootstrap_records import FIRST_RECORDS, write_first_records
from metaquorum.quorum.storage.data_dir import Storage, is_formatted, new_id, open_storage
from metaquorum.runtime.interfaces import StorageError
from metaquorum.runtime.one_line import one_line
from metaquorum.runtime.system import RealDisk

FAILED = 1
BAD_USAGE = 2


@click.command("cluster-id", short_help="Print a new cluster id.")
def cluster_id_command() -> None:
    """Print a new random cluster id, for all nodes of a new cluster.

    \b
    Examples:
      mq-server cluster-id
      mq-server format --cluster-id $(mq-server cluster-id) --node-id 1 --data-dir /srv/log
    """
    click.echo(new_id(SystemRandom()))


@click.command("secret", short_help="Create a file with a new cluster secret.")
@click.argument("file", type=click.Path(dir_okay=False))
def secret_command(file: str) -> None:
    """Write a new secret to FILE, which only its owner can read.

    All nodes of a cluster need the same file (--secret-file), which authenticates them to each
    other. An existing file is not replaced.

    \b
    Examples:
      mq-server secret /etc/metaquorum/secret
    """
    try:
        create_secret(file)
    except SecretError as error:
        click.echo(f"mq-server: {one_line(str(error))}", err=True)
        sys.exit(FAILED)
    click.echo(f"{file} has a new secret; copy it to each node of the cluster")


@click.command("format", short_help="Format a data directory for a node.")
@click.option("--data-dir", required=True, metavar="DIR")
@click.option("--cluster-id", required=True, metavar="ID", help="Cluster id, equal on all nodes.")
@click.option("--node-id", required=True, type=click.IntRange(0, 2**31 - 1), metavar="N")
@click.option(
    "--ignore-formatted",
    is_flag=True,
    help="Do not fail if DIR is formatted for this node already.",
)
@click.option(
    "--add-scram",
    "scram",
    multiple=True,
    metavar="MECHANISM=[name=N,password-file=F]",
    help="SCRAM user of the new cluster; repeatable, equal for all controllers.",
)
def format_command(
    data_dir: str, cluster_id: str, node_id: int, ignore_formatted: bool, scram: tuple[str, ...]
) -> None:
    """Format a data directory: store the cluster id and the node id in it.

    The directory must be empty or missing. A node refuses to start on a directory of another
    cluster or node.

    \b
    Examples:
      mq-server format --data-dir /srv/log --cluster-id Q2x1c3RlciBvZiBtaW5lIQ --node-id 1
      mq-server format --data-dir /srv/log --cluster-id Q2x1c3RlciBvZiBtaW5lIQ --node-id 1
      --add-scram 'SCRAM-SHA-512=[name=admin,password-file=/etc/metaquorum/password]'
    """
    path, disk, random = os.path.abspath(data_dir), RealDisk(), SystemRandom()
    try:
        cluster_id_option(cluster_id)
        records = scram_records(scram)
        if is_formatted(disk, path) and not ignore_formatted:
            raise UsageError(
                f"{path} is formatted already; --ignore-formatted accepts it if it belongs to this"
                " node"
            )
        storage = open_storage(
            disk, path, node_id, random, owner=f"process {os.getpid()}", cluster_id=cluster_id
        )
        # An earlier run may have formatted the directory and been killed before writing these.
        if records and not _has_begun(disk, storage):
            write_first_records(disk, path, records)
        storage.close()
    except (UsageError, StorageError, OSError) as error:
        click.echo(f"mq-server: {one_line(str(error))}", err=True)
        sys.exit(BAD_USAGE if isinstance(error, UsageError) else FAILED)
    done = "formatted" if storage.is_new else "was formatted already"
    click.echo(f"{path} {done}: cluster {cluster_id}, node {node_id}")


def _has_begun(disk: RealDisk, storage: Storage) -> bool:
    """Return whether the first records or the metadata log exist already."""
    first_records = os.path.join(storage.data_dir, FIRST_RECORDS)
    return disk.exists(first_records) or disk.exists(storage.metadata_dir)
