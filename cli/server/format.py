"""mq-server format, cluster-id and secret: what nodes of one cluster are given before they start.

A node formats an empty data directory by itself when it starts; `format` is for doing it apart, as
with Kafka's storage tool.
"""

import os
import sys
from random import SystemRandom

import click

from cli.common.usage import UsageError
from cli.server.quorum_options import cluster_id_option
from cli.server.scram_option import scram_records
from metaquorum.channel.identity import SecretError, create_secret
from metaquorum.runtime.interfaces import StorageError
from metaquorum.runtime.one_line import one_line
from metaquorum.runtime.system import RealDisk
from metaquorum.storage.bootstrap_records import FIRST_RECORDS, write_first_records
from metaquorum.storage.data_dir import Storage, is_formatted, new_id, open_storage

FAILED = 1
BAD_USAGE = 2


@click.command("cluster-id", short_help="Print a new cluster id.")
def cluster_id_command() -> None:
    """Print a new cluster id, to be given to each node of a new cluster.

    \b
    Examples:
      mq-server cluster-id
      mq-server format --cluster-id $(mq-server cluster-id) --node-id 1 --data-dir /srv/log
    """
    click.echo(new_id(SystemRandom()))


@click.command("secret", short_help="Make the file with a cluster's secret.")
@click.argument("file", type=click.Path(dir_okay=False))
def secret_command(file: str) -> None:
    """Write a new secret to FILE, which only its owner can read.

    Each node of a cluster is given the same file (--secret-file), by which nodes know each other.
    A file that is there is not replaced.

    \b
    Examples:
      mq-server secret /etc/metaquorum/secret
    """
    try:
        create_secret(file)
    except SecretError as error:
        click.echo(f"mq-server: {one_line(str(error))}", err=True)
        sys.exit(FAILED)
    click.echo(f"{file} holds a new secret; copy it to each node of the cluster")


@click.command("format", short_help="Say whose a data directory is.")
@click.option("--data-dir", required=True, metavar="DIR")
@click.option("--cluster-id", required=True, metavar="ID", help="The same for every node.")
@click.option("--node-id", required=True, type=click.IntRange(0, 2**31 - 1), metavar="N")
@click.option(
    "--ignore-formatted", is_flag=True, help="No complaint where it is this node's already."
)
@click.option(
    "--add-scram",
    "scram",
    multiple=True,
    metavar="MECHANISM=[name=N,password-file=F]",
    help="A user that the new cluster knows. Say the same to each controller.",
)
def format_command(
    data_dir: str, cluster_id: str, node_id: int, ignore_formatted: bool, scram: tuple[str, ...]
) -> None:
    """Write down that a data directory is this node's, in this cluster.

    The directory must be empty, or not be there yet. A node that starts on one of another cluster
    or node refuses.

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
                f"{path} is formatted already; --ignore-formatted leaves it as it is, if it is"
                " this node's"
            )
        storage = open_storage(
            disk, path, node_id, random, owner=f"process {os.getpid()}", cluster_id=cluster_id
        )
        # Another run may have formatted it, and been killed before it had written these.
        if records and not _has_begun(disk, storage):
            write_first_records(disk, path, records)
        storage.close()
    except (UsageError, StorageError, OSError) as error:
        click.echo(f"mq-server: {one_line(str(error))}", err=True)
        sys.exit(BAD_USAGE if isinstance(error, UsageError) else FAILED)
    done = "formatted" if storage.is_new else "was formatted already"
    click.echo(f"{path} {done}: cluster {cluster_id}, node {node_id}")


def _has_begun(disk: RealDisk, storage: Storage) -> bool:
    """What its metadata log begins with is there, or no use any more."""
    first_records = os.path.join(storage.data_dir, FIRST_RECORDS)
    return disk.exists(first_records) or disk.exists(storage.metadata_dir)
