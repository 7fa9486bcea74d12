"""mq-admin groups delete."""

from collections.abc import Sequence

import click

from metaquorum.cli.admin.common.scopes import Scope, parse_scopes, topics_option
from metaquorum.cli.admin.common.session import Session, session_command, yes_option
from metaquorum.cli.admin.groups.options import groups_argument
from metaquorum.client.cluster import TopicPartition
from metaquorum.client.errors import AdminError


@click.command("delete", short_help="Delete groups, or their offsets of topics.")
@groups_argument()
@topics_option("Delete only the committed offsets of this topic; repeatable.")
@yes_option
@session_command
def delete_command(
    session: Session, groups: tuple[str, ...], topics: tuple[str, ...], yes: bool
) -> None:
    """Delete groups without members and all their committed offsets.

    With --topic the groups stay, and only their committed offsets of these topics are deleted; no
    member may subscribe to the topics.

    \b
    Examples:
      mq-admin groups delete billing
      mq-admin groups delete billing --topic orders --topic payments:0,1
      mq-admin groups delete test-1 test-2 --yes
    """
    groups = tuple(dict.fromkeys(groups))
    if topics:
        _delete_offsets(session, groups, parse_scopes(topics), yes)
        return
    many = "group" if len(groups) == 1 else f"{len(groups)} groups"
    session.ask(f"Delete {many} {', '.join(groups)} with all committed offsets?", yes)
    session.say_each(session.groups.delete_groups(groups), "deleted")


def _delete_offsets(
    session: Session, groups: Sequence[str], scopes: Sequence[Scope], yes: bool
) -> None:
    wanted = {
        group: partitions for group in groups if (partitions := _partitions(session, group, scopes))
    }
    if not wanted:
        return
    for group, partitions in wanted.items():
        session.note(f"{group}: committed offsets of {', '.join(map(str, partitions))}")
    count = sum(map(len, wanted.values()))
    session.ask(f"Delete {count} committed offset{'' if count == 1 else 's'}?", yes)
    for group, partitions in wanted.items():
        outcomes = session.groups.delete_offsets(group, partitions)
        of_group = {
            f"{group}: committed offset of {where}": error for where, error in outcomes.items()
        }
        session.say_each(of_group, "deleted")


def _partitions(session: Session, group: str, scopes: Sequence[Scope]) -> list[TopicPartition]:
    """Return the partitions with a committed offset in the scopes; report scopes without one."""
    (outcome,) = session.groups.committed_offsets([group]).values()
    committed = session.keep(outcome)
    if committed is None:
        return []
    found: list[TopicPartition] = []
    for scope in scopes:
        own = [where for where in committed if scope.contains(where)]
        if not own:
            where = f"topic {scope.topic}"
            if scope.partitions is not None:
                where = f"{scope.topic}:{','.join(map(str, scope.partitions))}"
            text = f"group {group} has no committed offset in {where}"
            session.report(AdminError(text))
        found += own
    return list(dict.fromkeys(found))
