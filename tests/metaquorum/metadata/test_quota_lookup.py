"""Quota lookup: the tables of the chapter on quotas, and a comparison with a naive resolver."""

from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.quota_lookup import QuotaEntity, Sharers, SpecialName, applying, rules_for

KEY = "consumer_byte_rate"
CLIENTS = {
    "C0": ("alice", "pump"),
    "C1": ("alice", "pump"),
    "C2": ("alice", "sink"),
    "C3": ("alice", "drain"),
    "C4": ("alice", "drain"),
    "C5": ("alice", None),
    "C6": ("alice", None),
    "C7": ("bob", None),
}


def table(quotas: dict[QuotaEntity, dict[str, float]]) -> dict[str, tuple[object, set[str]]]:
    """Return for each client its byte rate and the clients that share it."""
    rules = {name: applying(quotas, KEY, *client) for name, client in CLIENTS.items()}
    return {
        name: (
            None if rule is None else rule.value,
            {name} if rule is None else {n for n, r in rules.items() if r == rule},
        )
        for name, rule in rules.items()
    }


def test_the_first_table_of_the_chapter() -> None:
    quotas = {
        QuotaEntity("alice", "pump"): {KEY: 400.0},
        QuotaEntity("alice", SpecialName.DEFAULT): {KEY: 300.0},
        QuotaEntity("alice"): {KEY: 200.0},
    }
    assert table(quotas) == {
        "C0": (400.0, {"C0", "C1"}),
        "C1": (400.0, {"C0", "C1"}),
        "C2": (300.0, {"C2"}),
        "C3": (300.0, {"C3", "C4"}),
        "C4": (300.0, {"C3", "C4"}),
        "C5": (300.0, {"C5", "C6"}),
        "C6": (300.0, {"C5", "C6"}),
        "C7": (None, {"C7"}),
    }


def test_the_second_table_of_the_chapter() -> None:
    quotas = {QuotaEntity("alice", "pump"): {KEY: 400.0}, QuotaEntity("alice"): {KEY: 200.0}}
    shared = {"C2", "C3", "C4", "C5", "C6"}
    assert table(quotas) == {
        "C0": (400.0, {"C0", "C1"}),
        "C1": (400.0, {"C0", "C1"}),
        **dict.fromkeys(sorted(shared), (200.0, shared)),
        "C7": (None, {"C7"}),
    }


def test_a_quota_of_another_kind_does_not_hide_one_that_is_less_specific() -> None:
    quotas = {
        QuotaEntity("alice", "pump"): {"producer_byte_rate": 1.0},
        QuotaEntity(SpecialName.ABSENT, SpecialName.DEFAULT): {KEY: 5.0},
    }
    rule = applying(quotas, KEY, "alice", "pump")
    assert rule is not None
    assert (rule.precedence, rule.value) == (8, 5.0)
    assert rule.sharers == Sharers(None, "pump")


def test_the_default_user_is_each_user_by_itself() -> None:
    quotas = {QuotaEntity(SpecialName.DEFAULT): {KEY: 7.0}}
    alice, bob = applying(quotas, KEY, "alice", "x"), applying(quotas, KEY, "bob", "x")
    assert alice is not None
    assert bob is not None
    assert alice.sharers == Sharers("alice", None)
    assert bob.sharers == Sharers("bob", None)


def test_all_eight_rules_are_shown_in_order() -> None:
    shown = list(rules_for({}, KEY, "alice", "pump"))
    assert [rule.precedence for rule in shown] == list(range(1, 9))
    assert [str(rule.entity) for rule in shown] == [
        "user=alice, client-id=pump",
        "user=alice, client-id=<default>",
        "user=alice",
        "user=<default>, client-id=pump",
        "user=<default>, client-id=<default>",
        "user=<default>",
        "client-id=pump",
        "client-id=<default>",
    ]


USERS = st.sampled_from(["alice", "bob"])
IDS = st.sampled_from([None, "", "pump", "sink"])
USER_PARTS = st.sampled_from(["alice", "bob", SpecialName.DEFAULT, SpecialName.ABSENT])
ID_PARTS = st.sampled_from(["pump", "sink", SpecialName.DEFAULT, SpecialName.ABSENT])
ENTITIES = st.builds(QuotaEntity, USER_PARTS, ID_PARTS, st.just(SpecialName.ABSENT))


def naive(quotas: dict[QuotaEntity, dict[str, float]], user: str, client_id: str | None) -> object:
    """Return the value that applies, found by comparing all quotas."""
    ranks: dict[tuple[SpecialName | bool, SpecialName | bool], int] = {
        (True, True): 1,
        (True, SpecialName.DEFAULT): 2,
        (True, SpecialName.ABSENT): 3,
        (SpecialName.DEFAULT, True): 4,
        (SpecialName.DEFAULT, SpecialName.DEFAULT): 5,
        (SpecialName.DEFAULT, SpecialName.ABSENT): 6,
        (SpecialName.ABSENT, True): 7,
        (SpecialName.ABSENT, SpecialName.DEFAULT): 8,
    }
    best: tuple[int, float] | None = None
    for entity, values in quotas.items():
        kinds: list[SpecialName | bool] = []
        for part, name in ((entity.user, user), (entity.client_id, client_id)):
            if isinstance(part, SpecialName):
                kinds.append(part)
            elif part == name:
                kinds.append(True)
        if len(kinds) < 2 or KEY not in values:
            continue
        rank = ranks.get((kinds[0], kinds[1]))
        if rank is not None and (best is None or rank < best[0]):
            best = rank, values[KEY]
    return best


@given(
    st.dictionaries(ENTITIES, st.dictionaries(st.sampled_from([KEY, "other"]), st.floats(1, 9))),
    USERS,
    IDS,
)
def test_the_rule_that_applies_is_a_naive_resolvers(
    quotas: dict[QuotaEntity, dict[str, float]], user: str, client_id: str | None
) -> None:
    rule = applying(quotas, KEY, user, client_id)
    assert (None if rule is None else (rule.precedence, rule.value)) == naive(
        quotas, user, client_id
    )
