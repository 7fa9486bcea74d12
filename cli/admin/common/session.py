"""What every command shares: its cluster, its output, its errors and their exit codes."""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TypeVar

import click

from cli.common.output import Column, Row, printable, show_data, show_rows
from cli.common.settings import OUTPUTS, Settings, resolve
from metaquorum.client.admin import AdminClient
from metaquorum.client.cluster import Cluster, parse_bootstrap
from metaquorum.client.errors import (
    AdminError,
    BrokerError,
    InterruptedChangeError,
    NotServedError,
    UnreachableError,
    UnsendableError,
)
from metaquorum.client.socket_transport import BlockingAdmin, connect
from wire.primitives.errors import ErrorCode, KafkaError, WireError

REFUSED: Final = 1
BAD_USAGE: Final = 2
UNREACHABLE: Final = 3
# What the protocol has room for: more is a mistake to be told before anything is sent.
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

T = TypeVar("T")

# What a person can do next.
_NEXT: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`mq-admin topics list` shows those there are",
    ErrorCode.TOPIC_ALREADY_EXISTS: "`mq-admin topics describe NAME` shows it; "
    "`mq-admin topics alter` changes it",
    ErrorCode.INVALID_REPLICATION_FACTOR: "`mq-admin cluster describe` shows the nodes there are",
    ErrorCode.INVALID_CONFIG: "`mq-admin configs describe TYPE NAME --all --docs` explains them",
    ErrorCode.INVALID_PARTITIONS: "partitions can only be added; to have fewer, make another topic",
    ErrorCode.MESSAGE_TOO_LARGE: "send smaller records or batches (--batch-bytes), or raise the "
    "topic's max.message.bytes",
    ErrorCode.OFFSET_OUT_OF_RANGE: "choose another --from: beginning, end, or an offset within",
    ErrorCode.BROKER_NOT_AVAILABLE: "`mq-admin cluster describe` shows the nodes there are",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "`mq-admin workers list` shows those there are",
    ErrorCode.NOT_ENOUGH_REPLICAS: "too few replicas are in sync: `mq-admin topics describe` shows "
    "which, min.insync.replicas says how many are needed",
    ErrorCode.LEADER_NOT_AVAILABLE: "a node is down, or cannot use its log: `mq-admin topics "
    "describe NAME --health` says which partitions have no leader, and why",
    ErrorCode.POLICY_VIOLATION: "the configs decide: `mq-admin configs describe topic NAME`",
    ErrorCode.TOPIC_DELETION_DISABLED: "the nodes' config delete.topic.enable forbids it",
    ErrorCode.INVALID_RECORD: "a compacted topic needs a key with each record",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "--username, --password-file, the environment or a "
    "profile say who you are",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "--mechanism chooses another",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "somebody with the right to must grant it, or do this",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "somebody with the right to must grant it, or do this",
}


class Session:
    """One run of one command."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.output = settings.output
        self.has_failed = False

    @functools.cached_property
    def cluster(self) -> Cluster:
        """Closed when the command ends."""
        try:
            addresses = parse_bootstrap(self.settings.bootstrap)
        except ValueError as error:
            raise click.UsageError(f"{self.settings.source}: {error}") from None
        connected = connect(
            addresses, timeout_s=self.settings.timeout_s, security=self.settings.security
        )
        try:
            return click.get_current_context().with_resource(connected)
        except ValueError as error:  # of the files for TLS
            raise click.UsageError(str(error)) from None

    @functools.cached_property
    def admin(self) -> BlockingAdmin:
        return BlockingAdmin(self.cluster)

    @property
    def client(self) -> AdminClient:
        return self.admin.client

    # Output

    def show_rows(self, rows: Sequence[Row], columns: Sequence[Column]) -> None:
        show_rows(self.output, rows, columns)

    def show_data(self, data: Any) -> None:
        show_data(self.output, data)

    def say(self, text: str) -> None:
        """To a person who reads along; machines read exit codes."""
        if self.output == "text":
            click.echo(printable(text))

    def note(self, text: str) -> None:
        """One line, whatever names it quotes."""
        click.echo(printable(text), err=True)

    def note_delays(self, api: str) -> None:
        """Whether a quota has slowed this command down."""
        times = self.cluster.throttle_times.get(api)
        if times is not None and times.delayed:
            self.note(
                f"A quota has delayed {times.delayed} of {times.answers} answers, by up to "
                f"{times.max_ms / 1000:.1f} s; `mq-admin quotas explain` shows which"
            )

    def ask(self, question: str, yes: bool) -> None:
        """Return if the person agrees; leave if not, or if there is nobody to ask."""
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            self.note(f"mq-admin: nothing was done: there is no terminal to ask at: {question}")
            self.note("  --yes answers it")
            sys.exit(BAD_USAGE)
        if not click.confirm(question, err=True):
            self.note("Nothing was done.")
            click.get_current_context().exit(REFUSED)

    # Errors

    def report(self, error: Exception) -> None:
        """It is told; the exit code will say that something was refused."""
        self.has_failed = True
        click.echo(f"mq-admin: {printable(_sentence(error))}", err=True)
        if step := _next_step(error):
            click.echo(f"  {step}", err=True)

    def keep(self, outcome: T | BrokerError) -> T | None:
        """The outcome unless it is an error, which is told."""
        if isinstance(outcome, BrokerError):
            self.report(outcome)
            return None
        return outcome

    def fail(self, error: Exception) -> NoReturn:
        self.report(error)
        if isinstance(error, UnreachableError):
            where = f"asked at {self.settings.bootstrap} ({self.settings.source})"
            click.echo(f"  {where}; --bootstrap, MQ_BOOTSTRAP or a profile names another", err=True)
            if "TLS" in str(error):
                click.echo(
                    "  --tls-authorities, MQ_TLS_AUTHORITIES or a profile says that TLS is spoken,"
                    " and whose certificates are believed",
                    err=True,
                )
            elif "who you are" in str(error):
                click.echo(f"  {_NEXT[ErrorCode.SASL_AUTHENTICATION_FAILED]}", err=True)
        if isinstance(error, UnreachableError | InterruptedChangeError):
            sys.exit(UNREACHABLE)
        sys.exit(BAD_USAGE if isinstance(error, UnsendableError) else REFUSED)


def _sentence(error: Exception) -> str:
    if isinstance(error, KafkaError):
        return f"{error} ({error.code.name})"
    return str(error)


def _next_step(error: Exception) -> str:
    if isinstance(error, NotServedError):
        return "`mq-admin cluster apis` shows what it serves"
    if isinstance(error, InterruptedChangeError):
        return "look whether it was made before you ask again"
    return _NEXT.get(error.code, "") if isinstance(error, KafkaError) else ""


def session_command(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose first parameter is a Session, with the options of one."""

    @click.option("-b", "--bootstrap", metavar="HOST:PORT,...", help="Where to find the cluster.")
    @click.option("--profile", metavar="NAME", help="A named cluster from the profiles' file.")
    @click.option("-o", "--output", type=click.Choice(OUTPUTS), help="[default: text]")
    @click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(0.1, 3600),
        metavar="SECONDS",
        help="How long one request may take, retries included.  [default: 30]",
    )
    @functools.wraps(function)
    def call(
        bootstrap: str | None,
        profile: str | None,
        output: str | None,
        timeout_s: float | None,
        **arguments: Any,
    ) -> None:
        own = {
            "bootstrap": bootstrap,
            "profile": profile,
            "output": output,
            "timeout_s": timeout_s,
        }
        session = Session(resolve(merged(click.get_current_context(), own), os.environ))
        try:
            function(session, **arguments)
        except (KafkaError, AdminError, WireError) as error:
            session.fail(error)
        if session.has_failed:
            sys.exit(REFUSED)

    return call


def merged(ctx: click.Context, own: dict[str, Any]) -> dict[str, Any]:
    """The options before the command's name, and over them those behind it."""
    given = dict(ctx.find_root().obj or {})
    if own.get("bootstrap") and not own.get("profile"):
        given.pop("profile", None)
    if own.get("profile") and not own.get("bootstrap"):
        given.pop("bootstrap", None)
    return given | {name: value for name, value in own.items() if value is not None}


def complete_topics(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Topics that begin so, if the cluster can tell within a moment."""
    try:
        settings = resolve(merged(ctx, ctx.params), os.environ)
        with connect(
            settings.bootstrap, timeout_s=COMPLETION_TIMEOUT_S, security=settings.security
        ) as cluster:
            names = [topic.name for topic in BlockingAdmin(cluster).topics()]
    except (KafkaError, AdminError, WireError, ValueError, click.UsageError):
        return []
    return [name for name in names if name.startswith(incomplete)]


COMPLETION_TIMEOUT_S: Final = 1.0


def topic_argument(*, many: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.argument(
        "topics" if many else "topic",
        metavar="TOPIC..." if many else "TOPIC",
        nargs=-1 if many else 1,
        required=True,
        shell_complete=complete_topics,
    )


yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Have the cluster check it, and change nothing."
)


def parse_assignments(pairs: Sequence[str], option: str) -> dict[str, str]:
    """From KEY=VALUE texts; click.UsageError for others."""
    assigned: dict[str, str] = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} takes KEY=VALUE, not {text!r}")
        assigned[name.strip()] = value
    return assigned
