"""mq-admin users."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from metaquorum.cli.admin.common.session import REFUSED, Session, session_command, yes_option
from metaquorum.cli.common.output import Column, Row, printable
from metaquorum.cli.common.security import MAX_PASSWORD_BYTES
from metaquorum.client.administration.users import DEFAULT_MECHANISM, Credentials, is_unknown
from metaquorum.client.errors import BrokerError
from metaquorum.security.scram import (
    BY_SASL_NAME,
    DEFAULT_ITERATIONS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
)
from metaquorum.wire.primitives.errors import ErrorCode

PASSWORD_VARIABLE: Final = "MQ_NEW_PASSWORD"  # noqa: S105
_COLUMNS: Final = (Column("user"), Column("mechanism"), Column("iterations"))


@click.group("users", short_help="Add, list and remove users with SCRAM passwords.")
def command() -> None:
    """Add, list and remove users that log in with SCRAM, and change their passwords.

    Users are stored in the cluster's metadata, and changes apply to all later logins. (Users of the
    mechanism PLAIN are in the configs of each node, and are not shown.) The password is read from
    the terminal; for scripts from standard input, a file, or the variable MQ_NEW_PASSWORD. There is
    no option for it, because all users of a machine can read the options of a process.
    """


def _password_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.option(
                "--mechanism",
                "mechanisms",
                multiple=True,
                type=click.Choice(list(BY_SASL_NAME), case_sensitive=False),
                help=f"Repeatable.  [default: {DEFAULT_MECHANISM}]",
            ),
            click.option(
                "--iterations",
                type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
                default=DEFAULT_ITERATIONS,
                show_default=True,
                help="Iterations of the SCRAM hash; more make guessing slower.",
            ),
            click.option(
                "--new-password-file",
                metavar="FILE",
                help="Read the password from its first line; - is standard input.",
            ),
        )
    ):
        function = option(function)
    return function


@command.command("create")
@click.argument("user")
@_password_options
@session_command
def create(
    session: Session,
    user: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    new_password_file: str | None,
) -> None:
    """Add a user.

    Fails without a change if the user exists already.

    \b
    Examples:
      mq-admin users create alice
      pwgen -s 30 1 | tee alice.password | mq-admin users create alice
      mq-admin users create alice --mechanism SCRAM-SHA-256 --mechanism SCRAM-SHA-512
    """
    if not is_unknown(there := _described(session, user)):
        if isinstance(there, BrokerError):
            raise there
        raise BrokerError(
            ErrorCode.DUPLICATE_RESOURCE,
            "the user exists already; `mq-admin users alter` changes the password",
            f"user {user}",
        )
    _set(session, user, mechanisms or (DEFAULT_MECHANISM,), iterations, new_password_file)
    session.say(f"user {printable(user)} created")


@command.command("alter")
@click.argument("user")
@_password_options
@session_command
def alter(
    session: Session,
    user: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    new_password_file: str | None,
) -> None:
    """Change a user's password, for all its mechanisms or for the given ones.

    Open connections stay open, up to connections.max.reauth.ms if that is set.

    \b
    Examples:
      mq-admin users alter alice
      mq-admin users alter alice --new-password-file alice.password --iterations 16384
    """
    chosen = mechanisms or tuple(_known(session, user))
    _set(session, user, chosen, iterations, new_password_file)
    session.say(f"user {printable(user)} altered")


@command.command("list")
@session_command
def list_users(session: Session) -> None:
    """List all users that can log in with SCRAM, with their mechanisms.

    \b
    Examples:
      mq-admin users list
      mq-admin users list -o json
    """
    found = session.admin.describe_users()
    rows = [
        row
        for user, credentials in found.items()
        if isinstance(credentials, dict)
        for row in _rows(user, credentials)
    ]
    session.show_rows(rows, _COLUMNS)


@command.command("describe")
@click.argument("user")
@session_command
def describe(session: Session, user: str) -> None:
    """Show the mechanisms that a user can log in with.

    \b
    Examples:
      mq-admin users describe alice
    """
    session.show_rows(_rows(user, _known(session, user)), _COLUMNS)


@command.command("delete")
@click.argument("user")
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(list(BY_SASL_NAME), case_sensitive=False),
    help="Only this mechanism; repeatable.  [default: all of the user]",
)
@yes_option
@session_command
def delete(session: Session, user: str, mechanisms: tuple[str, ...], yes: bool) -> None:
    """Remove a user, or one of its mechanisms; its quotas are not removed.

    \b
    Examples:
      mq-admin users delete alice
      mq-admin users delete alice --mechanism SCRAM-SHA-256 --yes
    """
    there = _known(session, user)
    chosen = tuple(dict.fromkeys(mechanisms)) or tuple(there)
    left = [mechanism for mechanism in there if mechanism not in chosen]
    named = ", ".join(chosen)
    what = f"{named} of user {printable(user)}" if left else f"user {printable(user)}"
    session.ask(f"Remove {what}?" if left else f"Remove {what} ({named})?", yes)
    session.admin.delete_credentials(user, chosen)
    session.say(f"{what} deleted" + (f"; {', '.join(left)} remains" if left else ""))


def _described(session: Session, user: str) -> "Credentials | BrokerError":
    return session.admin.describe_users([user])[user]


def _known(session: Session, user: str) -> Credentials:
    """Return the credentials of the user. Raises BrokerError if it does not exist."""
    found = _described(session, user)
    if isinstance(found, BrokerError):
        raise found
    return found


def _rows(user: str, credentials: Credentials) -> list[Row]:
    return [
        {"user": user, "mechanism": mechanism, "iterations": iterations}
        for mechanism, iterations in sorted(credentials.items())
    ]


def _set(
    session: Session, user: str, mechanisms: Sequence[str], iterations: int, path: str | None
) -> None:
    password = _new_password(user, path)
    if not password:
        session.note("mq-admin: the password is empty")
        sys.exit(REFUSED)
    session.admin.set_password(user, password, mechanisms=mechanisms, iterations=iterations)


def _new_password(user: str, path: str | None) -> str:
    """Read the password from the file, or else MQ_NEW_PASSWORD, the terminal or standard input."""
    if path not in (None, "-"):
        assert path is not None
        try:
            with open(os.path.expanduser(path), "rb") as file:
                return _first_line(file.read(MAX_PASSWORD_BYTES + 1))
        except OSError as error:
            raise click.UsageError(f"cannot read {path}: {error.strerror}") from None
    if path is None:
        if password := os.environ.get(PASSWORD_VARIABLE):
            return password
        if sys.stdin.isatty():
            question = f"Password of {printable(user)}"
            asked = click.prompt(question, hide_input=True, confirmation_prompt=True, err=True)
            return str(asked)
    return _first_line(sys.stdin.buffer.read(MAX_PASSWORD_BYTES + 1))


def _first_line(data: bytes) -> str:
    if len(data) > MAX_PASSWORD_BYTES:
        raise click.UsageError("the password is too long")
    try:
        return data.decode().split("\n")[0].rstrip("\r")
    except UnicodeDecodeError:
        raise click.UsageError("the password is not UTF-8 text") from None
