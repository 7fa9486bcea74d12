"""Log lines for clients that are refused state by a budget, because responses have no text."""

import logging
from collections.abc import Callable
from typing import Final

from metaquorum.dataplane.coordinators.client_budget import SHARE, ClientBudget, Refusal
from metaquorum.dataplane.instruments.log_rate_limit import LogRateLimiter

log = logging.getLogger(__name__)

# Longest part of a name in a line.
SHOWN: Final = 80


class BudgetLog:
    """Makes the budgets of one coordinator, and logs what they refuse; lines are limited."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lines = LogRateLimiter(monotonic())

    def budget(self, name: str, limit_bytes: Callable[[], int]) -> ClientBudget:
        """Return a budget without use; `name` is that of its config."""

        def refused(client: str, what: str, of: str, refusal: Refusal) -> None:
            self._refused(budget, client, what, of, refusal)

        budget = ClientBudget(name, limit_bytes, refused)
        return budget

    def _refused(
        self, budget: ClientBudget, client: str, what: str, name: str, refusal: Refusal
    ) -> None:
        more = self._lines.take(client, self._monotonic())
        if more is None:
            return
        limit = budget.limit_bytes()
        if refusal is Refusal.SHARE:
            reason = f"it has its share: at most 1/{SHARE} of what is left, above half of the limit"
        else:
            reason = "other clients have nearly all"
        log.warning(
            "refused the client %.80r %s, %.80r: it uses %d bytes, all clients use %d of"
            " %s=%d; %s. `mq-admin cluster memory` shows the clients with the most%s",
            client or "unknown",
            what,
            name[:SHOWN],
            budget.use_of(client).counted_bytes,
            budget.counted_bytes,
            budget.name,
            limit,
            reason,
            more,
        )
