"""Metrics of the budgets of coordinators, without clients: there may be thousands of them."""

from metaquorum.dataplane.coordinators.client_budget import ClientBudget
from metaquorum.dataplane.prometheus.exposition import Page


def add_budget(page: Page, budget: ClientBudget) -> None:
    """Add the rows of one budget, by the name of its config."""
    of = {"budget": budget.name}
    page.add("metaquorum_coordinator_budget_limit_bytes", budget.limit_bytes(), **of)
    page.add("metaquorum_coordinator_budget_counted_bytes", budget.counted_bytes, **of)
    page.add("metaquorum_coordinator_budget_clients", budget.client_count, **of)
    for reason, count in budget.refused_counts.items():
        page.add(
            "metaquorum_coordinator_budget_refused_total", count, **of, reason=reason.name.lower()
        )
