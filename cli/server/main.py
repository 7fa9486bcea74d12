"""mq-server: run a node, or a cluster of them on this machine."""

import gc
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from cli.common.lazy_group import LazyGroup
from cli.common.logs import LOG_FORMATS, LOG_LEVELS, configure_logging
from cli.common.process_figures import process_figures, start_words
from cli.common.usage import UsageError, address_text
from metaquorum.runtime.one_line import one_line

if TYPE_CHECKING:
    from cli.server.node_options import Invocation

BAD_USAGE: Final = 2
FAILED: Final = 1
SAME_SIGNAL_S: Final = 0.25  # after a signal, its like is taken for the same one

log = logging.getLogger(__name__)


# Imported when they are asked for: a node starts without them.
_LATE: Final = {
    "cluster": "cli.server.cluster:cluster_group",
    "format": "cli.server.format:format_command",
    "cluster-id": "cli.server.format:cluster_id_command",
    "secret": "cli.server.format:secret_command",
    "log": "cli.server.log_dump:log_group",
}


@click.group(
    cls=LazyGroup,
    late=_LATE,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="metaquorum", prog_name="mq-server")
def main() -> None:
    """Run metaquorum, an event log that Kafka clients and tools use."""


@main.command("run")
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="TOML file; its keys are the options below, with Kafka's configs in a [config] table.",
)
@click.option("--data-dir", metavar="DIR", help="Where everything is kept.  [default: ./mq-data]")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address for clients; port 0 takes a free one.  [default: 127.0.0.1:9092]",
)
@click.option(
    "--advertise",
    metavar="HOST[:PORT]",
    help="Address that clients are told to connect to.  [default: as --listen]",
)
@click.option("--node-id", type=int, metavar="N", help="This node's number.  [default: 1]")
@click.option("--roles", metavar="ROLE[,ROLE]", help="controller, worker or both.  [default: both]")
@click.option(
    "--quorum",
    metavar="ID@HOST:PORT,...",
    help="The controllers: 1, 3 or 5, the same for every node.  [default: this node alone]",
)
@click.option(
    "--quorum-listen",
    metavar="HOST:PORT",
    help="Where a controller listens to other nodes.  [default: as --quorum says]",
)
@click.option(
    "--cluster-id",
    metavar="ID",
    help="Which cluster a new node belongs to; needed where there are other nodes.",
)
@click.option(
    "--secret-file",
    metavar="FILE",
    help="The cluster's secret, by which nodes know each other; needed with --quorum.",
)
@click.option("--quorum-tls-certificate", metavar="FILE", help="TLS between nodes: this node's.")
@click.option("--quorum-tls-key", metavar="FILE", help="TLS between nodes: its private key.")
@click.option(
    "--quorum-tls-authorities",
    metavar="FILE",
    help="TLS between nodes: who signs the nodes' certificates.",
)
@click.option("--host", metavar="NAME", help="The machine's name, for placing replicas apart.")
@click.option("--rack", metavar="NAME", help="The rack or zone, for placing replicas apart.")
@click.option(
    "--metrics-listen",
    metavar="HOST:PORT",
    help="Where Prometheus finds /metrics; there is no login.  [default: nowhere]",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any of Kafka's worker configs that this version has; repeatable.",
)
@click.option(
    "--log-format", type=click.Choice(LOG_FORMATS), help="Of the lines on stderr.  [default: text]"
)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), help="[default: info]")
def run(sets: tuple[str, ...], config_file: str | None, **options: Any) -> None:
    """Run one node until SIGTERM or SIGINT.

    With no options at all: one process in both roles, data in ./mq-data, clients at
    127.0.0.1:9092.

    \b
    Examples:
      mq-server run
      mq-server run --data-dir /srv/log --listen 0.0.0.0:9092 --advertise log1.example.org
      mq-server run --listen 127.0.0.1:0 --set auto.create.topics.enable=false
      mq-server run --data-dir /srv/log --set log.dirs=/disk1/log,/disk2/log
    """
    # Imports only make objects that stay: a fifth of their time would go to looking for garbage.
    gc.disable()
    from cli.server.node_options import invocation

    try:
        asked = invocation(options, config_file, sets)
    except UsageError as error:
        click.echo(f"mq-server: {one_line(str(error))}", err=True)
        sys.exit(BAD_USAGE)
    configure_logging(asked.log_format, asked.log_level)
    sys.exit(_run_node(asked))


def _run_node(invocation: "Invocation") -> int:
    """The exit code. Imports late: --help and bad usage need none of it."""
    import trio

    from dataplane.node import Node, NodeError
    from metaquorum.runtime.system import real_runtime
    from wire.records.walk_form import form_name

    # What is imported stays: the collector need not walk it, neither now (30 ms) nor later. Starts
    # and requests leave no cycles, so that the oldest generation, whose walk takes longest, is
    # rarely worth one.
    gc.freeze()
    gc.set_threshold(10_000, 50, 1_000)
    gc.enable()
    node = Node(
        invocation.node, real_runtime(), owner=f"process {os.getpid()}", process=process_figures
    )
    is_ready = False

    def started(node: Node) -> None:
        nonlocal is_ready
        is_ready = True
        took = start_words()
        # So does what the start has made, but for its garbage.
        gc.collect()
        gc.freeze()
        click.echo(
            f"metaquorum node {node.config.node_id} ready: "
            f"listening on {address_text(*node.address)}, "
            f"cluster {node.cluster_id}, data {node.config.data_dir} "
            f"({took}, record walk {form_name()})"
        )

    async def stop_on_signal(everything: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            first = await anext(signals)
            node.stop()
            # A wrapper such as timeout(1) sends what it gets to its child and to the group: twice.
            stopped_at = trio.current_time()
            while await anext(signals) == first:
                if trio.current_time() - stopped_at > SAME_SIGNAL_S:
                    break
            log.warning("stopping at once; the logs will be checked at the next start")
            everything.cancel()

    async def main() -> int:
        return_code = FAILED
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_on_signal, nursery.cancel_scope)
            await node.run(started)
            return_code = 0  # stopped in good order
            nursery.cancel_scope.cancel()
        return return_code

    return_code = FAILED
    try:
        return_code = trio.run(main)
    except* NodeError as errors:
        return_code = FAILED if is_ready else BAD_USAGE
        _complain(invocation, str(_first(errors)))
    except* Exception as errors:  # a bug, told in the format that was asked for
        log.critical("the node ended by a bug", exc_info=errors)
    return return_code


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _complain(invocation: "Invocation", sentence: str) -> None:
    if invocation.log_format == "json":
        log.error("%s", sentence)
    else:
        click.echo(f"mq-server: {one_line(sentence)}", err=True)


if __name__ == "__main__":
    main()
