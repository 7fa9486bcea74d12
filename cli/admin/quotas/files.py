"""mq-admin quotas diff and apply: compare the quotas of a file with a cluster, or apply them."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import click

from metaquorum.cli.admin.common.session import (
    REFUSED,
    Session,
    dry_run_option,
    session_command,
    yes_option,
)
from metaquorum.cli.admin.quotas.entities import (
    amount_text,
    entity_data,
    note_what_limits_nobody,
    number,
    read_quotas,
)
from metaquorum.cli.common.output import Column, Row
from metaquorum.client.administration.quotas import Quotas, in_order
from metaquorum.metadata.quota_lookup import QuotaEntity

_COLUMNS: Final = (
    Column("action"),
    Column("whom", "entity"),
    Column("quota"),
    Column("was"),
    Column("becomes"),
)


class Difference(NamedTuple):
    """One quota that differs between the cluster and the file; None: it is not set."""

    entity: QuotaEntity
    key: str
    before: float | None
    after: float | None

    @property
    def action(self) -> str:
        if self.after is None:
            return "remove"
        return "add" if self.before is None else "change"


def differences(there: Quotas, wanted: Quotas, *, keep_others: bool) -> Iterator[Difference]:
    """Yield the differences in the order of `list`.

    `keep_others`: ignore quotas that are not in the file.
    """
    for entity in sorted(there.keys() | wanted.keys(), key=in_order):
        before, after = there.get(entity, {}), wanted.get(entity, {})
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) == after.get(key) or (keep_others and key not in after):
                continue
            yield Difference(entity, key, before.get(key), after.get(key))


def file_options(function: Any) -> Any:
    function = click.option(
        "--keep-others", is_flag=True, help="Keep quotas that are not in the file."
    )(function)
    return click.option(
        "-f",
        "--file",
        metavar="FILE",
        required=True,
        help="JSON or YAML in the format of `quotas list`; - is standard input.",
    )(function)


@click.command("diff", short_help="Show the changes that apply would make.")
@file_options
@click.option("--exit-code", is_flag=True, help="Exit with 1 if a quota differs.")
@session_command
def diff_command(session: Session, file: str, keep_others: bool, exit_code: bool) -> None:
    """Show the changes that give the cluster exactly the quotas of a file.

    \b
    Examples:
      mq-admin quotas diff -f quotas.yaml
      mq-admin quotas diff -f quotas.yaml --exit-code -o json
    """
    found = _found(session, file, keep_others)
    _show(session, found)
    if found and exit_code:
        click.get_current_context().exit(REFUSED)


@click.command("apply", short_help="Give the cluster exactly the quotas of a file.")
@file_options
@yes_option
@dry_run_option
@session_command
def apply_command(session: Session, file: str, keep_others: bool, yes: bool, dry_run: bool) -> None:
    """Give the cluster exactly the quotas of a file.

    The command shows the changes, and the cluster checks all of them before the first is made.
    Quotas that are not in the file are removed, after a confirmation.

    \b
    Examples:
      mq-admin quotas apply -f quotas.yaml --dry-run
      mq-admin quotas apply -f quotas.yaml
      mq-admin quotas apply -f team.yaml --keep-others
    """
    found = _found(session, file, keep_others)
    _show(session, found)
    if not found:
        return
    changes: dict[QuotaEntity, dict[str, float | None]] = {}
    for each in found:
        changes.setdefault(each.entity, {})[each.key] = each.after
    note_what_limits_nobody(session, changes)
    if not _alter(session, changes, validate_only=True):
        session.note("Nothing was changed.")
        return
    if dry_run:
        session.say("Nothing was changed; the cluster accepts all changes.")
        return
    removed = sum(each.after is None for each in found)
    if removed:
        session.ask(f"Remove {removed} quota{'s' if removed > 1 else ''}?", yes)
    if _alter(session, changes, validate_only=False):
        session.say("Applied.")


def _alter(
    session: Session, changes: dict[QuotaEntity, dict[str, float | None]], *, validate_only: bool
) -> bool:
    """Make or check the changes; return whether the cluster accepted all, and report errors."""
    done = session.admin.alter_client_quotas(changes, validate_only=validate_only)
    errors = [error for error in done.values() if error is not None]
    for error in errors:
        session.report(error)
    return not errors


def _found(session: Session, file: str, keep_others: bool) -> list[Difference]:
    wanted = read_quotas(file)
    there = session.admin.describe_client_quotas()
    return list(differences(there, wanted, keep_others=keep_others))


def _show(session: Session, found: list[Difference]) -> None:
    if session.output == "text" and not found:
        click.echo("No quota differs.")
        return
    rows = [_row(each) for each in found]
    if session.output == "text":
        texts = [
            row
            | {"whom": str(each.entity), "was": _text(each, each.before)}
            | {"becomes": _text(each, each.after)}
            for row, each in zip(rows, found, strict=True)
        ]
        session.show_rows(texts, _COLUMNS)
    else:
        session.show_data(rows)


def _row(each: Difference) -> Row:
    return {
        "action": each.action,
        "entity": entity_data(each.entity),
        "quota": each.key,
        "before": None if each.before is None else number(each.before),
        "after": None if each.after is None else number(each.after),
    }


def _text(each: Difference, value: float | None) -> str:
    return "" if value is None else amount_text(each.key, value)
