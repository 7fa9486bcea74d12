"""The budget of state with a share for each client, alone and compared with a naive model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.coordinators.client_budget import SHARE, UNKNOWN, ClientBudget, Refusal
from metaquorum.dataplane.network.client import Client, account_of

LIMIT = 100_000


def budget_of(limit_bytes: int = LIMIT) -> ClientBudget:
    return ClientBudget("x.memory.max.bytes", lambda: limit_bytes)


def filled(budget: ClientBudget, client: str, piece: int = 100) -> int:
    """Let a client create state until it is refused; return what it has."""
    while budget.refusal(client, piece) is None:
        budget.use(client, piece)
    return budget.use_of(client).admitted_bytes


def test_one_client_has_half_of_a_budget_and_the_next_ones_a_fifth_of_the_rest() -> None:
    budget = budget_of()
    assert filled(budget, "a") == LIMIT // 2
    assert filled(budget, "b") == LIMIT // 2 // (SHARE + 1)
    assert filled(budget, "c") == LIMIT * 2 // 5 // (SHARE + 1)
    assert filled(budget, "a") == LIMIT // 2


def test_a_client_finds_room_after_any_number_of_others() -> None:
    budget = budget_of()
    for number in range(20):
        filled(budget, f"attacker-{number}", 1)
    assert budget.refusal("honest", 100) is None


def test_several_clients_use_a_budget_together() -> None:
    """Ten of equal size get seven tenths, and none is refused before half is used."""
    budget = budget_of()
    clients = [f"c{number}" for number in range(10)]
    while all(budget.refusal(each, 100) is None for each in clients):
        for each in clients:
            budget.use(each, 100)
    assert budget.counted_bytes > LIMIT * 0.7


def test_a_refusal_says_whose_state_is_in_the_way() -> None:
    budget = budget_of()
    filled(budget, "a")
    assert budget.refusal("a", 100) is Refusal.SHARE
    assert budget.refusal("b", LIMIT) is Refusal.SHARE
    budget.use(UNKNOWN, LIMIT // 2)  # was loaded, and is not refused
    assert budget.refusal("b", 100) is Refusal.FULL
    reported: list[tuple[object, ...]] = []
    full = ClientBudget("x", lambda: 0, lambda *found: reported.append(found))
    assert full.refused("a", "an id", "x", 1) is Refusal.SHARE
    assert reported == [("a", "an id", "x", Refusal.SHARE)]
    assert full.refused_counts == {Refusal.SHARE: 1, Refusal.FULL: 0}


def test_what_is_known_may_grow_by_as_much_again_in_a_full_budget() -> None:
    budget = budget_of()
    budget.use("a", 1000)
    budget.use("b", LIMIT)
    assert budget.refusal("a", 1) is not None
    assert budget.refusal("a", 0, 1000) is None
    budget.use("a", 0, 1000)
    assert budget.refusal("a", 0, 1) is not None
    assert budget.refusal("a", 0, -10) is None


def test_growth_beyond_that_counts_as_new_state() -> None:
    budget = budget_of()
    budget.use("a", 1000)
    budget.use("a", 0, LIMIT // 2)
    assert budget.counted_bytes == LIMIT // 2
    assert budget.refusal("a", 0, 100) is Refusal.SHARE
    assert budget.refusal("a", 100) is None  # the larger of the two counts
    assert filled(budget, "b") == LIMIT // 2 // (SHARE + 1)


def test_two_clients_that_hand_over_state_have_no_more_than_others() -> None:
    """Otherwise one could create state, the other take it over, and so on until all is used."""
    budget = budget_of()
    owners: list[str] = []
    for _ in range(20):
        while budget.refusal("a", 100) is None:
            budget.use("a", 100)
            owners.append("a")
        owners = [budget.take_over(each, "b", 100) for each in owners]
    assert budget.counted_bytes <= LIMIT * 6 // 10 + 200
    assert owners.count("a") * 100 == budget.use_of("a").admitted_bytes


def test_loaded_state_is_that_of_the_next_client_which_uses_it() -> None:
    budget = budget_of()
    budget.use(UNKNOWN, 1000, 100)
    assert (budget.used_bytes, budget.counted_bytes) == (1100, 1000)
    assert budget.take_over(UNKNOWN, UNKNOWN, 1000, 100) == UNKNOWN
    assert budget.take_over(UNKNOWN, "a", 1000, 100) == "a"
    assert budget.clients() == ["a"]
    budget.use(UNKNOWN, LIMIT)
    filled(budget, "b")
    assert budget.take_over(UNKNOWN, "b", 100) == UNKNOWN


CLIENTS = st.sampled_from(("a", "b", "c", UNKNOWN))
CHANGES = st.tuples(CLIENTS, st.integers(-500, 2000), st.integers(-500, 2000), st.booleans())


@given(st.lists(CHANGES, max_size=60), st.integers(0, 10_000))
def test_the_counts_are_those_of_a_naive_model(
    changes: list[tuple[str, int, int, bool]], limit_bytes: int
) -> None:
    budget = budget_of(limit_bytes)
    model: dict[str, list[int]] = {}
    for client, admitted, grown, is_checked in changes:
        own = model.setdefault(client, [0, 0])
        admitted, grown = max(admitted, -own[0]), max(grown, -own[1])
        counted = sum(max(each) for each in model.values())
        after = max(own[0] + admitted, own[1] + grown)
        total = counted - max(own) + after
        is_permitted = (
            after <= max(own) or total <= limit_bytes / 2 or after <= (limit_bytes - total) / SHARE
        )
        assert (budget.refusal(client, admitted, grown) is None) == is_permitted
        if is_checked and not is_permitted:
            continue
        own[0], own[1] = own[0] + admitted, own[1] + grown
        budget.use(client, admitted, grown)
        assert budget.used_bytes == sum(map(sum, model.values()))
        assert budget.counted_bytes == sum(max(each) for each in model.values())
        assert budget.used_bytes <= 2 * budget.counted_bytes
        assert set(budget.clients()) == {name for name, each in model.items() if any(each)}


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("/192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("client", "client"),
    ],
)
def test_a_client_without_a_principal_has_the_name_of_its_address(host: str, name: str) -> None:
    client = Client((host, 1), "PLAINTEXT")
    assert client.account == account_of(host) == name
    client.principal = "User:alice"
    assert client.account == "User:alice"
