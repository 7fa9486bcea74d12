"""Explanation, in sentences, why a group does not consume. Plain; `facts` gathers the facts.

A group consumes if it is stable, a member owns every partition of its topics, and the members read
and commit. The sentences follow that order: rebalance, members, partitions, progress, quotas.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from metaquorum.client.administration.topic_survival import Level
from metaquorum.client.groups.consumer_protocol import CONSUMER_PROTOCOL
from metaquorum.client.groups.explanation.activity import GroupActivity, MemberActivity
from metaquorum.client.groups.explanation.facts import GroupFacts, PartitionProgress, Throttling
from metaquorum.client.groups.explanation.words import MAX_NAMED, duration, listed, ranges
from metaquorum.metadata.quota_lookup import BY_CONFIG, REQUEST_PERCENTAGE, rules_for
from metaquorum.wire.primitives.frozen import frozen

# Rebalances within this time that are reported as a problem of their own.
OFTEN: Final = 4
OFTEN_S: Final = 600.0
# Share of the session timeout after which a silent member is reported.
SILENT_SHARE: Final = 0.5
# Unread records up to this age are normal: three times the default of auto.commit.interval.ms.
COMMIT_S: Final = 15.0
_KEYS: Final = {REQUEST_PERCENTAGE: "% of the event loop"}


@frozen
class Finding:
    """One statement about a group. `about`: its subject, such as "rebalance" or "quota"."""

    about: str
    level: Level
    text: str


def explain(facts: GroupFacts) -> list[Finding]:
    """Return the statements about a group; one of them is GOOD only if it has no problem."""
    findings = [
        *_of_rebalance(facts.activity),
        *_of_members(facts),
        *_of_partitions(facts),
        *_of_progress(facts),
        *_of_transactions(facts.activity),
        *map(_of_quota, facts.throttling),
        *(Finding("failure", Level.NOTE, f"not known: {error}") for error in facts.failures),
    ]
    if not any(each.level is Level.BAD for each in findings):
        findings.insert(0, Finding("group", Level.GOOD, _all_well(facts)))
    return findings


def _all_well(facts: GroupFacts) -> str:
    lags = [each.now.lag for each in facts.partitions if each.now.lag is not None]
    text = f"no problem was found: the group is {facts.activity.state}, no member is late"
    if lags:
        text += f", lag {sum(lags)} records"
    unknown = [each.where for each in facts.partitions if each.is_uncommitted]
    return f"{text}; the lag in {ranges(unknown)} is not known" if unknown else text


# Rebalances


def _of_rebalance(activity: GroupActivity) -> Iterator[Finding]:
    late, for_s = _named(activity.late), activity.state_s
    if activity.waits_for == "more members":
        text = "the first rebalance waits for more members"
        if activity.left_s is not None:
            text += f", for {duration(activity.left_s)}"
        yield Finding("rebalance", Level.NOTE, text)
    elif activity.waits_for == "JoinGroup":
        yield Finding("rebalance", Level.BAD, _late_joins(activity))
    elif activity.waits_for == "assignment":
        text = f"all members {_wait(for_s, 2)} for the assignment of the group's leader, {late}"
        yield Finding("rebalance", Level.BAD, f"{text}{_ends(activity)}")
    elif activity.waits_for == "commit":
        text = (
            f"all members {_wait(for_s, 2)} until the assignment is in the log of "
            "__consumer_offsets: too few of its replicas may be in sync"
        )
        yield Finding("rebalance", Level.BAD, text)
    elif activity.waits_for == "SyncGroup":
        text = f"the group {_wait(for_s)} for {late} to fetch the assignment{_ends(activity)}"
        yield Finding("rebalance", Level.BAD, text)
    yield from _of_history(activity)


def _late_joins(activity: GroupActivity) -> str:
    last = activity.rebalances[-1] if activity.rebalances else None
    for_s = activity.state_s if last is None else last.began_s_ago
    count = len(activity.waiting)
    who = f"{count} of {_count(len(activity.members), 'member')}" if count else "the group"
    text = f"{who} {_wait(for_s, count or 1)} for"
    late = [_silent(member) for member in activity.late]
    if late:
        return f"{text} {listed(late)}, to join again{_ends(activity)}"
    count = len(activity.pending)
    hosts = sorted({each.client_host.removeprefix("/") for each in activity.pending})
    new = f"{_count(count, 'new member')} from {listed(hosts)} to join with the received id"
    return f"{text} {new}{_ends(activity)}"


def _silent(member: MemberActivity) -> str:
    return f"{member.name}, silent for {duration(member.heard_s)}"


def _is_silent(member: MemberActivity) -> bool:
    """Return whether the member is likely to lose its session."""
    return member.heard_s > SILENT_SHARE * member.session_timeout_s and not member.muted_s


def _session_left_s(member: MemberActivity) -> float:
    return max(0.0, member.session_timeout_s - member.heard_s)


def _ends(activity: GroupActivity) -> str:
    if activity.left_s is None:
        return ""
    text = f"; it continues without them in {duration(activity.left_s)}"
    if activity.late and all(map(_is_silent, activity.late)):
        sessions_s = max(map(_session_left_s, activity.late))
        if sessions_s < activity.left_s:
            return f"{text}, or in {duration(sessions_s)} if they stay silent: their sessions end"
    return text


def _of_history(activity: GroupActivity) -> Iterator[Finding]:
    recent = [each for each in activity.rebalances if each.began_s_ago <= OFTEN_S]
    if len(recent) < OFTEN:
        return
    ((cause, count),) = Counter(each.cause for each in recent).most_common(1)
    of_cause = [each for each in recent if each.cause == cause]
    clients = sorted({each.client_id for each in of_cause if each.client_id})
    whose = f" ({listed(clients)})" if clients else ""
    took_s = sum(each.began_s_ago if each.lasted_s is None else each.lasted_s for each in recent)
    text = (
        f"{len(recent)} rebalances within {duration(OFTEN_S)}, which took {duration(took_s)}; "
        f"{count} of them because {cause}{whose}"
    )
    yield Finding("rebalances", Level.BAD, text)


# Members


def _of_members(facts: GroupFacts) -> Iterator[Finding]:
    activity = facts.activity
    if not activity.members:
        last = activity.rebalances[-1] if activity.rebalances else None
        text = "the group has no members: no consumer of it is running, or none can join"
        if not activity.protocol_type:
            text += "; consumers that assign partitions to themselves are not members"
        if last is not None:
            text += f"; its last rebalance began {duration(last.began_s_ago)} ago: {last.cause}"
            text += f" ({last.client_id})" if last.client_id else ""
        yield Finding("members", Level.BAD, text)
        return
    silent = [
        member
        for member in activity.members
        if not member.waiting_in and not member.is_late and _is_silent(member)
    ]
    for member in silent[:MAX_NAMED]:
        text = f"{_silent(member)}, loses its session in {duration(_session_left_s(member))}"
        yield Finding("members", Level.BAD, text)
    muted = [member for member in activity.members if member.muted_s > 0]
    for member in muted[:MAX_NAMED]:
        text = f"{member.name}: a quota mutes its connection for {duration(member.muted_s)}"
        yield Finding("quota", Level.BAD, text)
    if facts.idle and activity.state == "Stable":
        verb = "owns" if len(facts.idle) == 1 else "own"
        text = f"{_named(facts.idle)} {verb} no partition: there are more members than partitions"
        yield Finding("members", Level.NOTE, text)
    if activity.protocol_type != CONSUMER_PROTOCOL:
        text = f"the members are not consumers, but of protocol type {activity.protocol_type}"
        yield Finding("members", Level.NOTE, f"{text}: what they own and read is not known")


# Partitions and progress


def _of_partitions(facts: GroupFacts) -> Iterator[Finding]:
    if facts.missing_topics:
        text = f"members subscribe to topics that do not exist: {listed(facts.missing_topics)}"
        yield Finding("partitions", Level.BAD, text)
    if facts.unowned and facts.activity.state == "Stable":
        leader = [
            each for each in facts.activity.members if each.member_id == facts.activity.leader
        ]
        text = (
            f"no member owns {ranges(facts.unowned)}: the group's leader"
            f"{f', {_named(leader)},' if leader else ''} did not assign them"
        )
        yield Finding("partitions", Level.BAD, text)
    if facts.unsubscribed:
        lag = sum(each.now.lag or 0 for each in facts.unsubscribed)
        where = ranges(each.where for each in facts.unsubscribed)
        text = f"no member subscribes to {where}, where the group has committed offsets"
        yield Finding(
            "partitions", Level.BAD if lag > 0 else Level.NOTE, f"{text}: lag {lag} records"
        )
    leaderless = [
        each.where
        for each in facts.partitions
        if not each.has_leader and each.where.topic not in facts.missing_topics
    ]
    if leaderless:
        text = f"nothing can be read from {ranges(leaderless)}: no leader, or deleted"
        yield Finding("partitions", Level.BAD, text)


def _of_transactions(activity: GroupActivity) -> Iterator[Finding]:
    """Yield what waits for open transactions; each commit in a transaction does for a moment."""
    if not activity.transactions:
        return
    names = [f"{each} ({_count(offsets, 'offset')})" for each, offsets in activity.transactions]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    text = (
        f"offsets of the group wait for the end of the transactions of producers"
        f" {', '.join(names[:MAX_NAMED])}{more}: consumers with isolation.level read_committed"
        " wait for them when they get partitions ('mq-admin transactions list' names the"
        " transactions)"
    )
    yield Finding("transactions", Level.NOTE, text)


def _of_progress(facts: GroupFacts) -> Iterator[Finding]:
    deleted, beyond = [], []
    for each in facts.partitions:
        committed, unread = each.now.committed, each.now.unread
        if committed is None or unread is None:
            continue
        if committed < unread.log_start:
            deleted.append(each.where)
        elif committed > unread.high_watermark:
            beyond.append(each.where)
    if deleted:
        text = f"records that the group has not read were deleted from {ranges(deleted)}"
        yield Finding(
            "progress", Level.BAD, f"{text}: auto.offset.reset decides where it continues"
        )
    if beyond:
        text = f"the committed offset is beyond the end of {ranges(beyond)}"
        yield Finding(
            "progress", Level.BAD, f"{text}: auto.offset.reset decides where it continues"
        )
    owned = [each for each in facts.partitions if each.owner is not None]
    behind = [each for each in owned if (each.now.lag or 0) > 0 and _is_old(each)]
    stuck = [each for each in behind if each.has_moved is False]
    slow = [each for each in behind if each.has_moved and (each.growth_per_s or 0) > 0]
    never = [each for each in owned if each.is_uncommitted]
    state_s = facts.activity.state_s
    is_settled = facts.activity.state == "Stable" and (state_s is None or state_s > COMMIT_S)
    ignored = [each for each in never if is_settled and each.has_grown]
    never = [each for each in never if each not in ignored]
    for word, found, advice in (
        ("had no commit", stuck, "the members do not read, or do not commit"),
        ("grew in spite of commits", slow, "the members read more slowly than producers write"),
    ):
        if found:
            where = ranges(each.where for each in found)
            text = f"the lag in {where} {word} within {duration(found[0].elapsed_s)}: {advice}"
            yield Finding("progress", Level.BAD, text)
    after = ""
    if is_settled and state_s is not None:
        after = f", {duration(state_s)} after the last rebalance"
    if ignored:
        text = f"nothing was committed yet in {ranges(each.where for each in ignored)}{after}"
        advice = "while producers write: the members do not read, or do not commit"
        yield Finding("progress", Level.BAD, f"{text}, {advice}")
    if never:
        text = f"nothing was committed yet in {ranges(each.where for each in never)}{after}"
        if is_settled:
            text += (
                ": the members have not read the records there, do not commit, or began at the end "
                "(auto.offset.reset)"
            )
        yield Finding("progress", Level.NOTE, text)


def _is_old(progress: PartitionProgress) -> bool:
    """Return whether the first unread record is older than members take that read and commit."""
    return progress.age_s is None or progress.age_s > COMMIT_S


# Quotas


def _of_quota(throttling: Throttling) -> Finding:
    use = throttling.use
    unit = _KEYS.get(use.key, " bytes a second")
    text = (
        f"{_named(throttling.members)}: worker {use.worker} has delayed "
        f"{_count(use.throttle_count, 'response')} by {use.key}, {use.quota:g}{unit}, "
        f"{rule_text(throttling)}"
    )
    if throttling.is_active:
        delay_s = max(throttling.muted_s, use.delay_s, use.throttle_recent_s)
        return Finding("quota", Level.BAD, f"{text}; now by {duration(delay_s)}")
    return Finding("quota", Level.NOTE, f"{text}; none within the last {duration(use.window_s)}")


def rule_text(throttling: Throttling) -> str:
    """Return the rule that sets the quota: its precedence and its entity."""
    use, member = throttling.use, throttling.members[0]
    if use.precedence == BY_CONFIG:
        return "the default in the worker's configs"
    rules = rules_for({}, use.key, member.user or "", member.client_id or None)
    rule = next((each for each in rules if each.precedence == use.precedence), None)
    return f"rule {use.precedence}" + ("" if rule is None else f", {rule.entity}")


# Words


def _named(members: Sequence[MemberActivity]) -> str:
    return listed([member.name for member in members])


def _wait(seconds: float | None, count: int = 1) -> str:
    """Return the verb for waiting members or, if `count` is 1, for a group."""
    if seconds is None:
        return "wait" if count != 1 else "waits"
    return f"{'has' if count == 1 else 'have'} waited {duration(seconds)}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
