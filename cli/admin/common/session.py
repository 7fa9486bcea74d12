"""Session of one command: its cluster, output, errors, next steps and exit codes."""

import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from metaquorum.cli.common.output import Column, Row, printable, show_data, show_rows
from metaquorum.cli.common.settings import OUTPUTS, Settings, resolve
from metaquorum.client.administration.admin import AdminClient
from metaquorum.client.cluster import Cluster, parse_bootstrap
from metaquorum.client.errors import (
    AdminError,
    BrokerError,
    InterruptedChangeError,
    LoginExpectedError,
    NotServedError,
    TlsExpectedError,
    TlsHandshakeError,
    UnreachableError,
    UnsendableError,
)
from metaquorum.client.socket_transport import BlockingAdmin, connect
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError, WireError

if TYPE_CHECKING:
    from metaquorum.client.groups.blocking import BlockingGroupAdmin
    from metaquorum.client.move_plans.blocking import BlockingMoveAdmin
    from metaquorum.client.transactions.blocking import BlockingTransactionAdmin

REFUSED: Final = 1
BAD_USAGE: Final = 2
UNREACHABLE: Final = 3
# Limits of the protocol's fields; options above them are rejected before any request.
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
COMPLETION_TIMEOUT_S: Final = 1.0
# Names in completions: letters, digits, and marks that no shell interprets.
COMPLETED: Final = re.compile(r"[\w.@%+=:,/][\w.@%+=:,/-]*")

T = TypeVar("T")

# Errors of connections for which broker and client may disagree about TLS.
_OF_TLS: Final = (TlsExpectedError, TlsHandshakeError)

# Next step for the user, by error code
_NEXT: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`mq-admin topics list` shows the topics",
    ErrorCode.TOPIC_ALREADY_EXISTS: "`mq-admin topics describe NAME` shows it; "
    "`mq-admin topics alter` changes it",
    ErrorCode.INVALID_REPLICATION_FACTOR: "`mq-admin cluster describe` shows the nodes",
    ErrorCode.INVALID_CONFIG: "`mq-admin configs describe TYPE NAME --all --docs` explains configs",
    ErrorCode.INVALID_PARTITIONS: "partitions can only be added; for fewer, create another topic",
    ErrorCode.MESSAGE_TOO_LARGE: "send smaller records or batches (--batch-bytes), or raise the "
    "topic's max.message.bytes",
    ErrorCode.OFFSET_OUT_OF_RANGE: "choose another --from: beginning, end, or an offset within",
    ErrorCode.BROKER_NOT_AVAILABLE: "`mq-admin cluster describe` shows the nodes",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "`mq-admin workers list` shows the registered workers",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas: "
    "`mq-admin topics describe` shows the ISR of each partition",
    ErrorCode.LEADER_NOT_AVAILABLE: "a node is down, or its log directory failed: `mq-admin topics "
    "describe NAME --health` shows the partitions without a leader, and the reason",
    ErrorCode.LOG_DIR_NOT_FOUND: "`mq-admin log-dirs` shows the log directories of each node",
    ErrorCode.POLICY_VIOLATION: "configs forbid it: `mq-admin configs describe topic NAME`",
    ErrorCode.TOPIC_DELETION_DISABLED: "the worker config delete.topic.enable forbids it",
    ErrorCode.INVALID_RECORD: "each record of a compacted topic needs a key",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "set the user name and password with --username and "
    "--password-file, the environment or a profile",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "--mechanism selects another",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "a user with the permission must grant it, or run this",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "a user with the permission must grant it, or run this",
    ErrorCode.GROUP_ID_NOT_FOUND: "`mq-admin groups list` shows the groups and their types",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first: `mq-admin groups describe` shows them",
    ErrorCode.UNKNOWN_MEMBER_ID: "stop its members first: `mq-admin groups describe` shows them",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop the members that subscribe to it: `mq-admin groups "
    "describe GROUP -o json` shows the subscriptions",
    ErrorCode.UNSUPPORTED_VERSION: "`mq-admin cluster describe` shows the feature levels of the "
    "cluster, and `mq-admin cluster upgrade` raises them",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "`mq-admin transactions list` shows the transactional "
    "ids",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "a user with the permission must grant it, or "
    "run this",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "a marker of a later coordinator is in the log: "
    "`mq-admin transactions producers` shows its epoch",
    ErrorCode.INVALID_PRODUCER_EPOCH: "the producer has another epoch there: `mq-admin "
    "transactions producers` shows it",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "a user with the permission must grant it, or run this",
}


DEFAULT_CLIENT_ID: Final = "mq-admin"
LEAST_NOTED_S: Final = 1.0  # shorter waits for a quota are not noted one by one


class Session:
    """One execution of a command."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.output = settings.output
        self.has_failed = False
        self.client_id = DEFAULT_CLIENT_ID  # set it before the first use of `cluster`

    @functools.cached_property
    def cluster(self) -> Cluster:
        """Connected cluster; it is closed when the command ends."""
        try:
            addresses = parse_bootstrap(self.settings.bootstrap)
        except ValueError as error:
            raise click.UsageError(f"{self.settings.source}: {error}") from None
        connected = connect(
            addresses,
            client_id=self.client_id,
            timeout_s=self.settings.timeout_s,
            security=self.settings.security,
        )
        try:
            cluster = click.get_current_context().with_resource(connected)
        except ValueError as error:  # invalid TLS files
            raise click.UsageError(str(error)) from None
        cluster.throttle_waits.begins = self._note_wait
        return cluster

    @functools.cached_property
    def admin(self) -> BlockingAdmin:
        return BlockingAdmin(self.cluster)

    @functools.cached_property
    def groups(self) -> "BlockingGroupAdmin":
        from metaquorum.client.groups.blocking import BlockingGroupAdmin

        return BlockingGroupAdmin(self.cluster)

    @functools.cached_property
    def moves(self) -> "BlockingMoveAdmin":
        from metaquorum.client.move_plans.blocking import BlockingMoveAdmin

        return BlockingMoveAdmin(self.cluster)

    @functools.cached_property
    def transactions(self) -> "BlockingTransactionAdmin":
        from metaquorum.client.transactions.blocking import BlockingTransactionAdmin

        return BlockingTransactionAdmin(self.cluster)

    @property
    def client(self) -> AdminClient:
        return self.admin.client

    # Output

    def show_rows(self, rows: Sequence[Row], columns: Sequence[Column]) -> None:
        show_rows(self.output, rows, columns)

    def show_data(self, data: Any) -> None:
        show_data(self.output, data)

    def say(self, text: str) -> None:
        """Print `text` in text output only; programs use the exit code."""
        if self.output == "text":
            click.echo(printable(text))

    def note(self, text: str) -> None:
        """Print one line on stderr; characters of quoted names are escaped."""
        click.echo(printable(text), err=True)

    def _note_wait(self, api: str, seconds: float) -> None:
        if seconds >= LEAST_NOTED_S:
            self.note(
                f"{api} is throttled for {seconds:.1f} s by a quota (`mq-admin quotas explain"
                f" --client-id {self.client_id}` shows it)"
            )

    def note_delays(self, api: str) -> None:
        """Print a note if a quota delayed responses to this command."""
        times = self.cluster.throttle_times.get(api)
        if times is not None and times.delayed:
            self.note(
                f"A quota delayed {times.delayed} of {times.answers} responses, by up to "
                f"{times.max_ms / 1000:.1f} s; `mq-admin quotas explain` shows the quota"
            )

    def ask(self, question: str, yes: bool) -> None:
        """Ask for confirmation. Exits if the user declines or there is no terminal."""
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            self.note(f"mq-admin: nothing was changed: no terminal for the question: {question}")
            self.note("  --yes confirms it")
            sys.exit(BAD_USAGE)
        if not click.confirm(printable(question), err=True):
            self.note("Nothing was changed.")
            click.get_current_context().exit(REFUSED)

    # Errors

    def report(self, error: Exception) -> None:
        """Print the error and its next step; the exit code of the command will be 1."""
        self.has_failed = True
        click.echo(f"mq-admin: {printable(_sentence(error))}", err=True)
        if step := _next_step(error):
            click.echo(f"  {step}", err=True)

    def say_each(self, outcomes: Mapping[str, Exception | None], done: str) -> None:
        """Print what is done with each item, as "orders deleted", or report its error."""
        for item, error in outcomes.items():
            if error is None:
                self.say(f"{item} {done}")
            else:
                self.report(error)

    def keep(self, outcome: T | BrokerError) -> T | None:
        """Return the outcome; if it is an error, report it and return None."""
        if isinstance(outcome, BrokerError):
            self.report(outcome)
            return None
        return outcome

    def fail(self, error: Exception) -> NoReturn:
        self.report(error)
        if isinstance(error, UnreachableError):
            where = f"the address was {self.settings.bootstrap} ({self.settings.source})"
            self.note(f"  {where}; --bootstrap, MQ_BOOTSTRAP or a profile sets another")
            if any(isinstance(cause, _OF_TLS) for cause in error.causes):
                click.echo(
                    "  --tls-authorities, MQ_TLS_AUTHORITIES or a profile enables TLS and sets the"
                    " trusted certificate authorities",
                    err=True,
                )
            elif any(isinstance(cause, LoginExpectedError) for cause in error.causes):
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
        return "`mq-admin cluster apis` shows the supported APIs"
    if isinstance(error, InterruptedChangeError):
        return "check whether the change was made before you repeat the command"
    return _NEXT.get(error.code, "") if isinstance(error, KafkaError) else ""


def client_id_option(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command whose requests may have quotas of a client id: add --client-id."""
    return click.option(
        "--client-id",
        default=DEFAULT_CLIENT_ID,
        show_default=True,
        metavar="ID",
        help="Client id of the requests, by which quotas may limit them.",
    )(function)


def session_command(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: add the common options and pass a Session as the first parameter."""

    @click.option("-b", "--bootstrap", metavar="HOST:PORT,...", help="Addresses of the cluster.")
    @click.option("--profile", metavar="NAME", help="Profile with the settings of a cluster.")
    @click.option("-o", "--output", type=click.Choice(OUTPUTS), help="[default: text]")
    @click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(0.1, 3600),
        metavar="SECONDS",
        help="Timeout of one request, including retries.  [default: 30]",
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
    """Return the options before the command's name, overridden by those after it."""
    given = dict(ctx.find_root().obj or {})
    if own.get("bootstrap") and not own.get("profile"):
        given.pop("profile", None)
    if own.get("profile") and not own.get("bootstrap"):
        given.pop("bootstrap", None)
    return given | {name: value for name, value in own.items() if value is not None}


def completions(
    ctx: click.Context, incomplete: str, names_of: Callable[[Cluster], Iterable[str]]
) -> list[str]:
    """Return the names that start with `incomplete`; none if the cluster answers too late.

    Names that a shell would interpret are left out: it inserts them into the command as they are.
    """
    try:
        settings = resolve(merged(ctx, ctx.params), os.environ)
        with connect(
            settings.bootstrap, timeout_s=COMPLETION_TIMEOUT_S, security=settings.security
        ) as cluster:
            names = names_of(cluster)
            return [n for n in names if n.startswith(incomplete) and COMPLETED.fullmatch(n)]
    except (KafkaError, AdminError, WireError, ValueError, click.UsageError):
        return []


def complete_topics(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return completions(
        ctx, incomplete, lambda cluster: [topic.name for topic in BlockingAdmin(cluster).topics()]
    )


def topic_argument(*, many: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.argument(
        "topics" if many else "topic",
        metavar="TOPIC..." if many else "TOPIC",
        nargs=-1 if many else 1,
        required=True,
        shell_complete=complete_topics,
    )


yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Let the cluster check the change without making it."
)


def parse_assignments(pairs: Sequence[str], option: str) -> dict[str, str]:
    """Parse KEY=VALUE texts. Raises click.UsageError for any other text."""
    assigned: dict[str, str] = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} takes KEY=VALUE, not {text!r}")
        assigned[name.strip()] = value
    return assigned
