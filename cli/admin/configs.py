"""mq-admin configs."""

import re
from typing import Final

import click

from metaquorum.cli.admin.common.session import REFUSED, Session, dry_run_option, session_command
from metaquorum.cli.common.output import Column, Row, echo_exact, plain
from metaquorum.client.values import (
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

_TYPES: Final = {kind.name.lower().replace("_", "-"): kind for kind in ResourceType}
_DEFAULT: Final = "default"
_ASSIGNMENT: Final = re.compile(r"([^=+]+?)(\+=|-=|=)(.*)", re.DOTALL)
_OPERATIONS: Final = {
    "=": ConfigOperation.SET,
    "+=": ConfigOperation.APPEND,
    "-=": ConfigOperation.SUBTRACT,
}

type_argument = click.argument("kind", metavar="TYPE", type=click.Choice(list(_TYPES)))
name_argument = click.argument("name", metavar="NAME")


@click.group("configs", short_help="Show and change the configs of topics and nodes.")
def command() -> None:
    """Show and change configs.

    TYPE is topic, broker, broker-logger, group or client-metrics. NAME is the name of a topic, the
    id of a node, or `default` for the default of all nodes.
    """


def resource(kind: str, name: str) -> ConfigResource:
    is_default = name == _DEFAULT and _TYPES[kind] is ResourceType.BROKER
    return ConfigResource(_TYPES[kind], "" if is_default else name)


def source_text(source: ConfigSource) -> str:
    return source.name.lower().replace("_", "-")


@command.command("describe")
@type_argument
@name_argument
@click.option("--all", "everything", is_flag=True, help="Show defaults, too.")
@click.option("--synonyms", is_flag=True, help="Show the value in every layer.")
@click.option("--docs", is_flag=True, help="Show the documentation of each config.")
@session_command
def describe(
    session: Session, kind: str, name: str, everything: bool, synonyms: bool, docs: bool
) -> None:
    """Show configs and the source of each value.

    Without --all, only configs whose value is not the default.

    \b
    Examples:
      mq-admin configs describe topic orders
      mq-admin configs describe topic orders --all --synonyms
      mq-admin configs describe broker 1 --all --docs
    """
    wanted = resource(kind, name)
    entries = session.admin.describe_configs(wanted, synonyms=True, documentation=docs)
    chosen = [e for e in entries if everything or e.source is not ConfigSource.DEFAULT]
    if not chosen and session.output == "text":
        session.note(f"No config is set for {wanted}; --all shows the defaults.")
        return
    columns = [Column("config"), Column("value"), Column("source")]
    if synonyms:
        columns.append(Column("synonyms", text=_synonyms_text))
    if docs:
        columns.append(Column("documentation"))
    session.show_rows([_row(entry, docs) for entry in chosen], columns)


def _row(entry: ConfigEntry, docs: bool) -> Row:
    row = {
        "config": entry.name,
        "value": entry.value,
        "source": source_text(entry.source),
        "type": entry.type.name.lower(),
        "read_only": entry.read_only,
        "sensitive": entry.is_sensitive,
        "synonyms": [
            {"config": s.name, "value": s.value, "source": source_text(s.source)}
            for s in entry.synonyms
        ],
    }
    return row | {"documentation": entry.documentation} if docs else row


def _synonyms_text(synonyms: list[Row]) -> str:
    return ", ".join(f"{s['source']}:{s['config']}={plain(s['value'])}" for s in synonyms)


@command.command("get")
@type_argument
@name_argument
@click.argument("key")
@session_command
def get(session: Session, kind: str, name: str, key: str) -> None:
    """Print only the value of one config.

    \b
    Examples:
      mq-admin configs get topic orders retention.ms
      mq-admin configs get broker default log.retention.ms
    """
    wanted = resource(kind, name)
    for entry in session.admin.describe_configs(wanted, [key]):
        if entry.name == key:
            if session.output == "text":
                echo_exact("" if entry.value is None else entry.value)
            else:
                session.show_data(_row(entry, docs=False))
            return
    session.note(f"mq-admin: {wanted} has no config {key}")
    session.note(f"  `mq-admin configs describe {kind} {name} --all` lists its configs")
    click.get_current_context().exit(REFUSED)


@command.command("set")
@type_argument
@name_argument
@click.argument("assignments", metavar="KEY=VALUE...", nargs=-1, required=True)
@dry_run_option
@session_command
def set_configs(
    session: Session, kind: str, name: str, assignments: tuple[str, ...], dry_run: bool
) -> None:
    """Set configs: either all of them change or none. += appends to a list, -= removes from it.

    \b
    Examples:
      mq-admin configs set topic orders retention.ms=86400000 max.message.bytes=2000000
      mq-admin configs set topic orders cleanup.policy+=compact
      mq-admin configs set broker default log.retention.ms=604800000
    """
    changes = []
    for text in assignments:
        found = _ASSIGNMENT.fullmatch(text)
        if found is None:
            raise click.UsageError(f"expected KEY=VALUE, not {text!r}")
        changes.append(ConfigChange(found[1].strip(), _OPERATIONS[found[2]], found[3]))
    _alter(session, resource(kind, name), changes, dry_run)


@command.command("unset")
@type_argument
@name_argument
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@dry_run_option
@session_command
def unset(session: Session, kind: str, name: str, keys: tuple[str, ...], dry_run: bool) -> None:
    """Remove configs, so that their defaults apply again.

    \b
    Examples:
      mq-admin configs unset topic orders retention.ms
    """
    changes = [ConfigChange(key, ConfigOperation.DELETE) for key in keys]
    _alter(session, resource(kind, name), changes, dry_run)


def _alter(
    session: Session, wanted: ConfigResource, changes: list[ConfigChange], dry_run: bool
) -> None:
    session.admin.alter_configs(wanted, changes, validate_only=dry_run)
    session.say(f"{wanted} would be altered" if dry_run else f"{wanted} altered")
