"""mq-admin groups explain: why a group does not consume."""

from typing import Any, Final

import click

from metaquorum.cli.admin.common.coordinators import coordinator_text
from metaquorum.cli.admin.common.session import Session, session_command
from metaquorum.cli.admin.groups.options import complete_groups
from metaquorum.cli.common.output import Column, Row, printable, show_pairs, show_table, size_text
from metaquorum.client.administration.topic_survival import Level
from metaquorum.client.cluster import TopicPartition
from metaquorum.client.groups.explanation.activity import MemberActivity, Rebalance
from metaquorum.client.groups.explanation.facts import GroupFacts, PartitionProgress, Throttling
from metaquorum.client.groups.explanation.sentences import Finding, explain, rule_text
from metaquorum.client.groups.explanation.words import duration, ranges

MAX_SAMPLE_S: Final = 60.0
# Consumers commit each five seconds by default (auto.commit.interval.ms).
DEFAULT_SAMPLE_S: Final = 6.0
_MARKS: Final = {Level.GOOD: "+", Level.NOTE: "-", Level.BAD: "!"}
_MEMBERS: Final = (
    Column("client_id", "client-id"),
    Column("host"),
    Column("instance_id", "instance-id"),
    Column("status"),
    Column("heard_s", "heard", lambda seconds: f"{duration(seconds)} ago"),
    Column("session_timeout_s", "session", duration),
    Column("shown", "partitions"),
)
_REBALANCES: Final = (
    Column("began_s_ago", "began", lambda seconds: f"{duration(seconds)} ago"),
    Column("lasted", "took"),
    Column("generation"),
    Column("client_id", "client-id"),
    Column("host"),
    Column("cause"),
    Column("reason"),
)
_PARTITIONS: Final = (
    Column("topic"),
    Column("partition"),
    Column("committed"),
    Column("end_offset"),
    Column("lag"),
    Column("size_bytes", "bytes", size_text),
    Column("age_s", "age", duration),
    Column("growth_per_s", "growth", lambda rate: f"{rate:+.1f}/s"),
    Column("client_id", "client-id"),
    Column("host"),
)


@click.command("explain", short_help="Explain why a group does not consume.")
@click.argument("group", shell_complete=complete_groups)
@click.option(
    "--sample",
    "sample_s",
    type=click.FloatRange(0, MAX_SAMPLE_S),
    default=DEFAULT_SAMPLE_S,
    show_default=True,
    metavar="SECONDS",
    help="Time between two readings of the lag, if there is one; 0: one reading.",
)
@session_command
def explain_command(session: Session, group: str, sample_s: float) -> None:
    """Explain why a group does not consume: late members, rebalances, partitions, lag and quotas.

    Sentences with ! name a problem, those with - something to know. The lag is given in records, in
    bytes of record batches, and as the age of the first unread record. Only metaquorum serves the
    requests that this command needs.

    \b
    Examples:
      mq-admin groups explain billing
      mq-admin groups explain billing --sample 10
      mq-admin groups explain billing -o json
    """
    facts = session.groups.gather_facts(group, sample_s=sample_s)
    findings = explain(facts)
    if session.output != "text":
        session.show_data(_data(facts, findings))
        return
    _show(session, facts, findings)


def _show(session: Session, facts: GroupFacts, findings: list[Finding]) -> None:
    activity = facts.activity
    since = "" if activity.state_s is None else f" for {duration(activity.state_s)}"
    show_pairs(
        [
            ("group", activity.group),
            ("state", f"{activity.state}{since}"),
            ("generation", activity.generation),
            ("assignor", activity.protocol),
            ("coordinator", coordinator_text(session, activity.coordinator)),
            ("members", len(activity.members)),
        ]
    )
    click.echo()
    for finding in findings:
        click.echo(printable(f"{_MARKS[finding.level]} {finding.about}: {finding.text}"))
    for rows, columns in (
        ([_member(each) for each in activity.members], _MEMBERS),
        ([_rebalance(each) for each in reversed(activity.rebalances)], _REBALANCES),
        ([_partition(each) for each in facts.partitions], _PARTITIONS),
    ):
        if rows:
            click.echo()
            show_table(rows, columns)


def _member(member: MemberActivity) -> Row:
    owned = () if member.assignment is None else member.assignment.partitions
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "user": member.user,
        "status": _status(member),
        "is_late": member.is_late,
        "waiting_in": member.waiting_in or None,
        "heard_s": member.heard_s,
        "muted_s": member.muted_s,
        "session_timeout_s": member.session_timeout_s,
        "rebalance_timeout_s": member.rebalance_timeout_s,
        "shown": ranges(owned),
    }


def _status(member: MemberActivity) -> str:
    if member.is_late:
        return "late"
    return f"waits in {member.waiting_in}" if member.waiting_in else "ok"


def _rebalance(rebalance: Rebalance) -> Row:
    lasted_s = rebalance.lasted_s
    return {
        "began_s_ago": rebalance.began_s_ago,
        "lasted_s": lasted_s,
        "lasted": "still lasts" if lasted_s is None else duration(lasted_s),
        "generation": rebalance.generation,
        "cause": rebalance.cause,
        "reason": rebalance.reason,
        "member_id": rebalance.member_id,
        "client_id": rebalance.client_id,
        "host": rebalance.client_host.removeprefix("/"),
    }


def _partition(progress: PartitionProgress) -> Row:
    owner, unread = progress.owner, progress.now.unread
    is_known = progress.now.committed is not None and unread is not None
    return {
        "topic": progress.where.topic,
        "partition": progress.where.partition,
        "committed": progress.now.committed,
        "start_offset": None if unread is None else unread.log_start,
        "end_offset": None if unread is None else unread.high_watermark,
        "lag": progress.now.lag,
        "size_bytes": unread.size_bytes if is_known and unread is not None else None,
        "age_s": progress.age_s,
        "growth_per_s": progress.growth_per_s,
        "has_leader": progress.has_leader,
        "subscribed": progress.is_subscribed,
        "client_id": None if owner is None else owner.client_id,
        "host": None if owner is None else owner.host,
        "member_id": None if owner is None else owner.member_id,
    }


def _data(facts: GroupFacts, findings: list[Finding]) -> dict[str, Any]:
    activity = facts.activity
    return {
        "group": activity.group,
        "state": activity.state,
        "state_s": activity.state_s,
        "generation": activity.generation,
        "assignor": activity.protocol,
        "leader": activity.leader,
        "coordinator": activity.coordinator,
        "waits_for": activity.waits_for or None,
        "left_s": activity.left_s,
        "findings": [
            {"about": each.about, "level": each.level.value, "text": each.text} for each in findings
        ],
        "members": [_member_data(each) for each in activity.members],
        "pending": [
            {
                "member_id": each.member_id,
                "host": each.client_host.removeprefix("/"),
                "left_s": each.left_s,
            }
            for each in activity.pending
        ],
        "rebalances": [_without(_rebalance(each), "lasted") for each in activity.rebalances],
        "unowned": [_where(each) for each in facts.unowned],
        "missing_topics": list(facts.missing_topics),
        "partitions": [_partition(each) for each in facts.partitions],
        "throttling": [_throttling(each) for each in facts.throttling],
    }


def _member_data(member: MemberActivity) -> Row:
    subscription, assignment = member.subscription, member.assignment
    return {
        **_without(_member(member), "shown", "status"),
        "topics": None if subscription is None else list(subscription.topics),
        "assignment": None if assignment is None else list(map(_where, assignment.partitions)),
    }


def _where(where: TopicPartition) -> Row:
    return {"topic": where.topic, "partition": where.partition}


def _throttling(throttling: Throttling) -> Row:
    use = throttling.use
    return {
        "member_ids": [member.member_id for member in throttling.members],
        "worker": use.worker,
        "quota": use.key,
        "value": use.quota,
        "rule": use.precedence,
        "entity": rule_text(throttling),
        "is_active": throttling.is_active,
        "muted_s": throttling.muted_s,
        "delay_s": use.delay_s,
        "throttle_count": use.throttle_count,
        "throttle_recent_s": use.throttle_recent_s,
    }


def _without(row: Row, *keys: str) -> Row:
    return {key: value for key, value in row.items() if key not in keys}
