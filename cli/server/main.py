"""mq-server: run a node, or a cluster of nodes on this machine."""

import gc
import logging
import os
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from metaquorum.cli.common.lazy_group import LazyGroup
from metaquorum.cli.common.logs import LOG_FORMATS, LOG_LEVELS, configure_logging
from metaquorum.cli.common.process_figures import process_figures, start_words
from metaquorum.cli.common.refused_output import discard_refused_output
from metaquorum.cli.common.usage import UsageError, address_text
from metaquorum.runtime.one_line import one_line

if TYPE_CHECKING:
    from metaquorum.cli.server.node_options import Invocation

BAD_USAGE: Final = 2
FAILED: Final = 1
SAME_SIGNAL_S: Final = 0.25  # a repeated signal within this time counts as one

log = logging.getLogger(__name__)


# Imported when they are used, so that `run` starts faster.
_LATE: Final = {
    "cluster": "metaquorum.cli.server.cluster:cluster_group",
    "format": "metaquorum.cli.server.format:format_command",
    "cluster-id": "metaquorum.cli.server.format:cluster_id_command",
    "secret": "metaquorum.cli.server.format:secret_command",
    "log": "metaquorum.cli.server.log_dump:log_group",
}


@click.group(
    cls=LazyGroup,
    late=_LATE,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="metaquorum", prog_name="mq-server")
def main() -> None:
    """Run metaquorum, an event log for Kafka clients and tools."""


@main.command("run")
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="TOML file with the options below as keys and worker configs in a [config] table.",
)
@click.option("--data-dir", metavar="DIR", help="Data directory.  [default: ./mq-data]")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address for clients; port 0 means any free port.  [default: 127.0.0.1:9092]",
)
@click.option(
    "--advertise",
    metavar="HOST[:PORT]",
    help="Address that the node advertises to clients.  [default: that of --listen]",
)
@click.option(
    "--node-id", type=int, metavar="N", help="Id of this node, unique in the cluster.  [default: 1]"
)
@click.option("--roles", metavar="ROLE[,ROLE]", help="controller, worker or both.  [default: both]")
@click.option(
    "--quorum",
    metavar="ID@HOST:PORT,...",
    help="The 1, 3 or 5 controllers, equal on all nodes.  [default: this node alone]",
)
@click.option(
    "--quorum-listen",
    metavar="HOST:PORT",
    help="Address of this controller for other nodes.  [default: its address in --quorum]",
)
@click.option(
    "--cluster-id",
    metavar="ID",
    help="Cluster id of a new node; required with --quorum.",
)
@click.option(
    "--secret-file",
    metavar="FILE",
    help="File with the secret that authenticates nodes to each other; required with --quorum.",
)
@click.option("--quorum-tls-certificate", metavar="FILE", help="TLS between nodes: certificate.")
@click.option("--quorum-tls-key", metavar="FILE", help="TLS between nodes: private key.")
@click.option(
    "--quorum-tls-authorities",
    metavar="FILE",
    help="TLS between nodes: trusted certificate authorities.",
)
@click.option(
    "--host", metavar="NAME", help="Host name, used to spread replicas.  [default: the machine's]"
)
@click.option("--rack", metavar="NAME", help="Rack or zone, used to spread replicas.")
@click.option(
    "--metrics-listen",
    metavar="HOST:PORT",
    help="Address of /metrics for Prometheus, without authentication.  [default: none]",
)
@click.option(
    "--ignore-dynamic-connection-limits",
    is_flag=True,
    default=None,
    help="Ignore limits of connections that were set while nodes ran: a way in if they refuse all"
    " connections.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Worker config; repeatable.",
)
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    help="Format of log lines on stderr.  [default: text]",
)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), help="[default: info]")
def run(sets: tuple[str, ...], config_file: str | None, **options: Any) -> None:
    """Run one node until SIGTERM, SIGINT or SIGHUP. SIGQUIT prints its tasks on stderr.

    Without options: a single node in both roles, with its data in ./mq-data and its listener at
    127.0.0.1:9092.

    \b
    Examples:
      mq-server run
      mq-server run --data-dir /srv/log --listen 0.0.0.0:9092 --advertise log1.example.org
      mq-server run --listen 127.0.0.1:0 --set auto.create.topics.enable=false
      mq-server run --data-dir /srv/log --set log.dirs=/disk1/log,/disk2/log
    """
    # Imported objects stay alive: garbage collection would take a fifth of the import time.
    gc.disable()
    from metaquorum.cli.server.node_options import invocation

    try:
        asked = invocation(options, config_file, sets)
    except UsageError as error:
        click.echo(f"mq-server: {one_line(str(error))}", err=True)
        sys.exit(BAD_USAGE)
    configure_logging(asked.log_format, asked.log_level)
    sys.exit(_run_node(asked))


def _run_node(invocation: "Invocation") -> int:
    """Run the node and return the exit code. Imports are late, since --help needs none of them."""
    import trio

    from metaquorum.cli.server.open_files import raise_open_files_limit, warn_of_low_limit
    from metaquorum.cli.server.task_dump import print_tasks_on_signal
    from metaquorum.dataplane.node import Node, NodeError
    from metaquorum.runtime.system import real_runtime
    from metaquorum.wire.protocol.request_form import form_name as request_form_name
    from metaquorum.wire.records.walk_form import form_name

    # Imported objects stay alive, so the garbage collector can skip them now (30 ms) and later. The
    # start and requests leave no reference cycles, so the oldest generation, which takes longest,
    # is rarely collected. A collection of the middle one looks at up to 2,000 x 10 objects: the
    # load of 50,000 groups has pauses of at most 6 ms, but of 100 ms with 10,000 x 50.
    gc.freeze()
    gc.set_threshold(2_000, 10, 25_000)
    gc.enable()
    config = replace(invocation.node, open_files=raise_open_files_limit())
    if config.max_connections is not None:
        warn_of_low_limit(config.open_files, config.max_connections)
    node = Node(config, real_runtime(), owner=f"process {os.getpid()}", process=process_figures)
    is_ready = False

    def started(node: Node) -> None:
        nonlocal is_ready
        is_ready = True
        took = start_words()
        # After one collection the objects of the start stay alive, too.
        gc.collect()
        gc.freeze()
        line = (
            f"metaquorum node {node.config.node_id} ready: "
            f"listening on {address_text(*node.address)}, "
            f"cluster {node.cluster_id}, data {node.config.data_dir} "
            f"({took}, record walk {form_name()}, small requests {request_form_name()})"
        )
        try:
            click.echo(line)
        except (OSError, ValueError) as error:  # a full disk, or a pipe without a reader
            log.warning("%s; this line cannot be written to standard output: %s", line, error)

    async def stop_on_signal(everything: trio.CancelScope) -> None:
        with trio.open_signal_receiver(*stop_signals()) as signals:
            first = await anext(signals)
            node.stop()
            # A wrapper such as timeout(1) sends a signal twice: to its child and to the group.
            stopped_at = trio.current_time()
            while await anext(signals) == first:
                if trio.current_time() - stopped_at > SAME_SIGNAL_S:
                    break
            log.warning("second signal: stopping immediately; the next start recovers all logs")
            everything.cancel()

    async def main() -> int:
        return_code = FAILED
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_on_signal, nursery.cancel_scope)
            nursery.start_soon(print_tasks_on_signal)
            await node.run(started)
            return_code = 0  # clean shutdown
            nursery.cancel_scope.cancel()
        return return_code

    return_code = FAILED
    try:
        return_code = trio.run(main)
    except* NodeError as errors:
        return_code = FAILED if is_ready else BAD_USAGE
        _complain(invocation, str(_first(errors)))
    except* Exception as errors:  # a bug, logged in the requested format
        log.critical(
            "the node stopped because of an unexpected error; this is a bug: report it with the"
            " traceback",
            exc_info=errors,
        )
    discard_refused_output()
    return return_code


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a node cleanly.

    SIGHUP, of a terminal that is closed, is one unless it is ignored, as by nohup.
    """
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if is_ignored else [signal.SIGHUP])]


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _complain(invocation: "Invocation", sentence: str) -> None:
    if invocation.log_format == "json":
        log.error("the node cannot run: %s", sentence)
    else:
        click.echo(f"mq-server: {one_line(sentence)}", err=True)


if __name__ == "__main__":
    main()
