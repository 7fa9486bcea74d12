"""mq-admin quotas explain: the rule (of eight) that applies to a client, and its current usage."""

from collections.abc import Sequence
from typing import Any, Final

import click

from metaquorum.cli.admin.common.session import Session, session_command
from metaquorum.cli.admin.quotas.entities import (
    BYTE_RATES,
    CLIENT_KEYS,
    OBSERVED_KEYS,
    UNITS,
    amount_text,
    bytes_text,
    canonical_ip,
    entity_data,
    number,
    parse_amount,
)
from metaquorum.cli.common.output import Column, Row, plain, show_table
from metaquorum.client.administration.quotas import Quotas
from metaquorum.client.errors import NotServedError
from metaquorum.client.usage.quota_use import QuotaClient, QuotaUse
from metaquorum.metadata.quota_lookup import (
    BY_CONFIG,
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    QuotaEntity,
    Rule,
    Sharers,
    SpecialName,
    rules_for,
)
from metaquorum.wire.primitives.frozen import frozen

_BY_CLIENT_ID: Final = (1, 4, 7)
_NO_IP: Final = SpecialName.ABSENT
ANONYMOUS: Final = "ANONYMOUS"  # user of unauthenticated clients
_RULES: Final = (
    Column("mark", "applies"),
    Column("precedence", "rule"),
    Column("whom", "entity"),
    Column("shown", "value"),
)
_USES: Final = (
    Column("worker"),
    Column("used"),
    Column("rate"),
    Column("share", "of quota"),
    Column("delay", "delay now"),
    Column("next_delay", "delay then"),
    Column("throttles", "delayed"),
    Column("longest"),
    Column("muted", "muted connections"),
)


@frozen
class Explained:
    """Rules and usage of one kind of quota for one client."""

    key: str
    rules: Sequence[Rule]
    uses: Sequence[QuotaUse]

    @property
    def applying(self) -> Rule | None:
        return next((rule for rule in self.rules if rule.value is not None), None)

    @property
    def by_config(self) -> float | None:
        """Default in the worker's configs, if no rule applies."""
        if self.applying is not None:
            return None
        return next((use.quota for use in self.uses if use.precedence == BY_CONFIG), None)


def rules_of(key: str, there: Quotas, client: QuotaClient) -> list[Rule]:
    """Return the rules of a quota in their order: eight for a client, two for an IP address."""
    if key != CONNECTION_CREATION_RATE:
        return list(rules_for(there, key, client.user, client.client_id))
    nobody = Sharers(None, None)
    entities = (
        QuotaEntity(ip=client.ip or SpecialName.DEFAULT),
        QuotaEntity(ip=SpecialName.DEFAULT),
    )
    return [
        Rule(number, entity, there.get(entity, {}).get(key), nobody)
        for number, entity in enumerate(entities, 1)
    ]


@click.command("explain", short_help="Show the rules that apply to a client, and its usage.")
@click.option(
    "--user", metavar="NAME", default=ANONYMOUS, help="[default: unauthenticated clients]"
)
@click.option("--client-id", metavar="NAME", help="[default: clients without one]")
@click.option("--ip", metavar="ADDRESS", help="Also show the connection rate of this address.")
@click.option(
    "--bytes",
    "amount",
    metavar="N",
    default="1MiB",
    help="Show the delay that N more bytes would cause.  [default: 1MiB]",
)
@session_command
def command(
    session: Session, user: str, client_id: str | None, ip: str | None, amount: str
) -> None:
    """Show the eight rules of each quota in their order, and the rule that applies to a client.

    The first rule with a value applies. Workers of metaquorum also report the current usage, and
    the delay of the next bytes; for Kafka clusters only rules and values are shown.

    \b
    Examples:
      mq-admin quotas explain --user alice --client-id loader
      mq-admin quotas explain --user alice --client-id loader --bytes 10MiB -o json
      mq-admin quotas explain --client-id loader --ip 10.0.0.7
    """
    ip = ip and canonical_ip(ip)
    client = QuotaClient(user, client_id, ip, parse_amount(PRODUCER_BYTE_RATE, amount))
    there = _relevant(session, client)
    uses, muted, why_not = _live(session, client)
    keys = [*CLIENT_KEYS, *([CONNECTION_CREATION_RATE] if ip else [])]
    keys += [key for key in OBSERVED_KEYS if any(key in quotas for quotas in there.values())]
    explained = [
        Explained(key, rules_of(key, there, client), [use for use in uses if use.key == key])
        for key in keys
    ]
    if session.output != "text":
        whom = {"user": user, "client_id": client_id, "ip": ip, "bytes": number(client.amount)}
        rows = [_data(one, client, muted) for one in explained]
        session.show_data(whom | {"live": not why_not, "why_not_live": why_not, "quotas": rows})
        return
    if why_not:
        session.note(why_not)
    for one in explained:
        _show(one, client, muted, is_live=not why_not)


def _relevant(session: Session, client: QuotaClient) -> Quotas:
    """Return all quotas that may apply to the client."""
    describe = session.admin.describe_client_quotas
    found = describe(user=client.user) | describe(user=SpecialName.DEFAULT)
    found |= describe(client_id=SpecialName.DEFAULT, strict=True)
    if client.client_id:
        found |= describe(client_id=client.client_id, strict=True)
    if client.ip is not None:
        found |= describe(ip=client.ip) | describe(ip=SpecialName.DEFAULT)
    return found


def _live(
    session: Session, client: QuotaClient
) -> tuple[list[QuotaUse], dict[tuple[int, str], list[float]], str | None]:
    """Return the usage on all workers, the client's muted connections, and the error if any.

    Muted connections: their remaining seconds, by worker and quota.
    """
    uses: list[QuotaUse] = []
    muted: dict[tuple[int, str], list[float]] = {}
    try:
        for node in session.admin.describe_cluster().nodes:
            described = session.admin.describe_quota_use(node.node_id, [client], include_muted=True)
            uses += described.of_clients[0]
            for one in described.muted:
                if (one.user, one.client_id) == (client.user, client.client_id):
                    muted.setdefault((one.worker, one.key), []).append(one.left_s)
    except NotServedError:
        return [], {}, "This cluster does not report the usage of quotas: rules and values only."
    return uses, muted, None


def _show(
    one: Explained,
    client: QuotaClient,
    muted: dict[tuple[int, str], list[float]],
    *,
    is_live: bool,
) -> None:
    click.echo(f"\n{one.key}: {_verdict(one)}")
    show_table([_rule_row(rule, rule is one.applying, client) for rule in one.rules], _RULES)
    if not is_live:
        return
    if one.key == CONTROLLER_MUTATION_RATE and one.applying is not None and not one.uses:
        click.echo("  The active controller counts this quota; it has counted no recent use.")
    if one.uses:
        if one.key in OBSERVED_KEYS:
            click.echo("  Observed: the delays were computed, and no client was delayed.")
        if one.key in BYTE_RATES:
            click.echo(f"  Current usage; `delay then`: after {bytes_text(client.amount)} more")
        show_table([_use_row(use, muted.get((use.worker, use.key), [])) for use in one.uses], _USES)


def _verdict(one: Explained) -> str:
    rule = one.applying
    if rule is None:
        if one.by_config is not None:
            value = amount_text(one.key, one.by_config)
            return f"{value}, the default in the workers' configs: no rule has a value"
        return "no rule has a value: not limited"
    assert rule.value is not None
    value = amount_text(one.key, rule.value)
    return f"{value} by rule {rule.precedence}, {plain(str(rule.entity))}{_shared(one.key, rule)}"


def _shared(key: str, rule: Rule) -> str:
    if key == CONNECTION_CREATION_RATE:
        return ""
    user, client_id = rule.sharers
    names = [
        f"{word} {plain(name) if name else '(none)'}"
        for word, name in (("user", user), ("client id", client_id))
        if name is not None
    ]
    return f"; shared by all clients with {' and '.join(names)}"


def _cannot_apply(rule: Rule, client: QuotaClient) -> bool:
    """Return whether the rule is for a client id by name, and the client has none."""
    return not client.client_id and rule.precedence in _BY_CLIENT_ID and rule.entity.ip is _NO_IP


def _rule_row(rule: Rule, applies: bool, client: QuotaClient) -> Row:
    return {
        "mark": "->" if applies else "-",
        "precedence": rule.precedence,
        "whom": "(a client id by name)" if _cannot_apply(rule, client) else str(rule.entity),
        "shown": None if rule.value is None else number(rule.value),
    }


def _use_row(use: QuotaUse, muted: list[float]) -> Row:
    is_bytes = use.key in BYTE_RATES
    return {
        "worker": use.worker,
        "used": f"{bytes_text(use.used, is_measured=True)} in {use.window_s:.1f} s"
        if is_bytes
        else f"{use.used:.1f} in {use.window_s:.1f} s",
        "rate": amount_text(use.key, use.rate, is_measured=True),
        "share": f"{use.utilization:.0%}",
        "delay": f"{use.delay_s:.1f} s",
        "next_delay": f"{use.next_delay_s:.1f} s",
        "throttles": use.throttle_count,
        "longest": f"{use.throttle_longest_s:.1f} s",
        "muted": f"{len(muted)}, up to {max(muted):.1f} s" if muted else "none",
    }


def _data(
    one: Explained, client: QuotaClient, muted: dict[tuple[int, str], list[float]]
) -> dict[str, Any]:
    rule = one.applying
    value = one.by_config if rule is None else rule.value
    return {
        "quota": one.key,
        "unit": UNITS[one.key],
        "applies": None if rule is None else rule.precedence,
        "value": None if value is None else number(value),
        "by_config": one.by_config is not None,
        "shared_by": None
        if rule is None
        else {"user": rule.sharers.user, "client_id": rule.sharers.client_id},
        "rules": [
            {
                "rule": each.precedence,
                "entity": None if _cannot_apply(each, client) else entity_data(each.entity),
                "value": None if each.value is None else number(each.value),
            }
            for each in one.rules
        ],
        "workers": [use_data(use, muted.get((use.worker, use.key), [])) for use in one.uses],
    }


def use_data(use: QuotaUse, muted: list[float]) -> Row:
    return {
        "worker": use.worker,
        "used": use.used,
        "used_total": use.used_total,
        "window_s": use.window_s,
        "rate": use.rate,
        "utilization": use.utilization,
        "delay_s": use.delay_s,
        "next_delay_s": use.next_delay_s,
        "throttle_count": use.throttle_count,
        "throttle_total_s": use.throttle_total_s,
        "throttle_longest_s": use.throttle_longest_s,
        "throttle_recent_s": use.throttle_recent_s,
        "muted_connections": len(muted),
        "muted_longest_s": max(muted, default=0.0),
    }
