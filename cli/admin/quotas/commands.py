"""mq-admin quotas."""

from typing import Any, Final

import click

from metaquorum.cli.admin.common.session import (
    REFUSED,
    Session,
    dry_run_option,
    parse_assignments,
    session_command,
    yes_option,
)
from metaquorum.cli.admin.quotas.entities import (
    amount_text,
    entity_options,
    name_text,
    note_what_limits_nobody,
    number,
    parse_quotas,
    quota_data,
    read_quotas,
    the_entity,
    the_parts,
)
from metaquorum.cli.common.lazy_group import LazyGroup
from metaquorum.cli.common.output import Column, Row, plain, show_pairs
from metaquorum.client.administration.quotas import Match, Quotas
from metaquorum.metadata.quota_lookup import QuotaEntity

_COLUMNS: Final = (
    Column("user"),
    Column("client_id", "client-id"),
    Column("ip"),
    Column("quota"),
    Column("value"),
    Column("reads", "that is"),
)
# Imported when they are used.
_LATE: Final = {
    "explain": "metaquorum.cli.admin.quotas.explain:command",
    "top": "metaquorum.cli.admin.quotas.top:command",
    "record": "metaquorum.cli.admin.quotas.record:command",
    "simulate": "metaquorum.cli.admin.quotas.simulate:command",
    "diff": "metaquorum.cli.admin.quotas.files:diff_command",
    "apply": "metaquorum.cli.admin.quotas.files:apply_command",
}


@click.group(
    "quotas",
    cls=LazyGroup,
    late=_LATE,
    short_help="Set, show and explain the quotas of users and clients.",
)
def command() -> None:
    """Set, show and explain quotas.

    A quota applies to an entity: a user, a client id, a pair of both, or an IP address, each by
    name or as the default of its kind. The quotas are producer_byte_rate and consumer_byte_rate
    (bytes per second on each worker), request_percentage (of a worker's time),
    controller_mutation_rate (partitions created and deleted per second) and, for IP addresses,
    connection_creation_rate.
    """


@command.command("set")
@entity_options()
@click.argument("assignments", metavar="KEY=VALUE...", nargs=-1)
@click.option(
    "-f",
    "--file",
    metavar="FILE",
    help="JSON or YAML in the format of `list`; - is standard input.",
)
@dry_run_option
@session_command
def set_quotas(
    session: Session, assignments: tuple[str, ...], file: str | None, dry_run: bool, **whom: Any
) -> None:
    """Set quotas of an entity; its other quotas do not change.

    Bytes may be written as 10MB or 10MiB. --file sets the quotas of all entities in the file.

    \b
    Examples:
      mq-admin quotas set --user alice producer_byte_rate=10MiB consumer_byte_rate=20MiB
      mq-admin quotas set --default-client-id request_percentage=50
      mq-admin quotas set --user alice --default-client-id producer_byte_rate=1MB
      mq-admin quotas set --ip 10.0.0.7 connection_creation_rate=10
      mq-admin quotas list -o json | mq-admin -b other:9092 quotas set --file -
    """
    if file is not None:
        if assignments or the_parts(whom):
            raise click.UsageError("--file has entities and quotas: omit the other arguments")
        _alter(session, dict(read_quotas(file)), dry_run)
        return
    entity = the_entity(whom)
    if not assignments:
        raise click.UsageError("expected KEY=VALUE, such as producer_byte_rate=10MiB")
    values = parse_quotas(parse_assignments(assignments, "quotas set"))
    _alter(session, {entity: values}, dry_run)


@command.command("get")
@entity_options()
@click.argument("key")
@session_command
def get(session: Session, key: str, **whom: Any) -> None:
    """Print only the value of one quota.

    \b
    Examples:
      mq-admin quotas get --user alice producer_byte_rate
    """
    entity = the_entity(whom)
    value = _of(session, entity).get(key)
    if value is None:
        session.note(f"mq-admin: {entity} has no quota {key}")
        session.note(
            "  `mq-admin quotas explain` shows the quota of another entity that applies, if any"
        )
        click.get_current_context().exit(REFUSED)
    if session.output == "text":
        click.echo(number(value))
    else:
        session.show_data(quota_data(entity, {key: value}))


@command.command("list")
@entity_options()
@click.option("--any-user", is_flag=True, help="Quotas of any user or the default user.")
@click.option("--any-client-id", is_flag=True, help="Quotas of any client id or the default one.")
@click.option("--any-ip", is_flag=True, help="Quotas of any IP address or the default one.")
@click.option("--strict", is_flag=True, help="Only entities without other parts.")
@session_command
def list_quotas(session: Session, strict: bool, **whom: Any) -> None:
    """List all quotas, or those that the options select.

    \b
    Examples:
      mq-admin quotas list
      mq-admin quotas list --user alice
      mq-admin quotas list --any-user --strict
      mq-admin quotas list -o yaml > quotas.yaml
    """
    wanted: dict[str, Any] = dict(the_parts(whom))
    for name in ("user", "client_id", "ip"):
        if whom[f"any_{name}"]:
            option = name.replace("_", "-")
            if name in wanted:
                raise click.UsageError(f"--any-{option} excludes the other options of this part")
            wanted[name] = Match.ANY
    if strict and not wanted:
        raise click.UsageError("--strict needs an option that selects entities, such as --any-user")
    found = session.admin.describe_client_quotas(**wanted, strict=strict)
    if session.output == "text":
        session.show_rows(_rows(found), _COLUMNS)
    else:
        session.show_data([quota_data(entity, quotas) for entity, quotas in found.items()])


@command.command("describe")
@entity_options()
@session_command
def describe(session: Session, **whom: Any) -> None:
    """Show the quotas that are set for exactly one entity.

    `explain` shows the quotas that apply to a client, of any entity.

    \b
    Examples:
      mq-admin quotas describe --user alice
      mq-admin quotas describe --user alice --default-client-id -o json
    """
    entity = the_entity(whom)
    quotas = _of(session, entity)
    if session.output != "text":
        session.show_data(quota_data(entity, quotas))
        return
    if not quotas:
        session.note(f"No quota is set for {entity}.")
        return
    show_pairs([*entity_rows(entity), *((key, amount_text(key, quotas[key])) for key in quotas)])


@command.command("delete")
@entity_options()
@click.argument("keys", metavar="[KEY...]", nargs=-1)
@yes_option
@dry_run_option
@session_command
def delete(session: Session, keys: tuple[str, ...], yes: bool, dry_run: bool, **whom: Any) -> None:
    """Remove quotas of an entity, by default all; then the next rule applies.

    \b
    Examples:
      mq-admin quotas delete --user alice producer_byte_rate --yes
      mq-admin quotas delete --default-client-id --yes
    """
    entity = the_entity(whom)
    there = _of(session, entity)
    for key in keys:
        if key not in there:
            session.note(f"{plain(str(entity))} has no quota {plain(key)}.")
    chosen = tuple(key for key in keys or there if key in there)
    if not chosen:
        if not keys:
            session.note(f"No quota is set for {plain(str(entity))}.")
        return
    if not dry_run:
        session.ask(f"Remove from {entity}: {', '.join(chosen)}?", yes)
    _alter(session, {entity: dict.fromkeys(chosen)}, dry_run, deletes=True)


def _of(session: Session, entity: QuotaEntity) -> dict[str, float]:
    """Return the quotas of exactly this entity."""
    found = session.admin.describe_client_quotas(
        user=entity.user, client_id=entity.client_id, ip=entity.ip, strict=True
    )
    return dict(sorted(found.get(entity, {}).items()))


def _alter(
    session: Session, changes: dict[QuotaEntity, Any], dry_run: bool, *, deletes: bool = False
) -> None:
    outcomes = session.admin.alter_client_quotas(changes, validate_only=dry_run)
    for entity, error in outcomes.items():
        if error is not None:
            session.report(error)
            continue
        whom, would = plain(str(entity)), "would be " if dry_run else ""
        if deletes:
            session.say(f"{whom}: {', '.join(map(plain, changes[entity]))} {would}deleted")
        else:
            session.say(f"{whom} {would}altered")
    note_what_limits_nobody(session, changes)


def entity_rows(entity: QuotaEntity) -> list[tuple[str, str]]:
    return [
        (kind, name_text(name))
        for kind, name in zip(("user", "client-id", "ip"), entity, strict=True)
    ]


def _rows(found: Quotas) -> list[Row]:
    return [
        {
            "user": name_text(entity.user),
            "client_id": name_text(entity.client_id),
            "ip": name_text(entity.ip),
            "quota": key,
            "value": number(value),
            "reads": amount_text(key, value),
        }
        for entity, quotas in found.items()
        for key, value in sorted(quotas.items())
    ]
