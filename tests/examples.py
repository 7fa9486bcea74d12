"""Numbers of Hypothesis' examples of tests that need more, or fewer, than the profile has."""

from typing import Any

from hypothesis import settings

# Examples of the profile `same`, which numbers of examples are relative to.
USUAL = 100


def examples(count: int, **options: Any) -> settings:
    """Return settings for that many examples; for a fifth of them in the profile `quick`."""
    share = min(1.0, settings.default.max_examples / USUAL)
    return settings(max_examples=max(1, round(count * share)), **options)
