"""Counts that the suite prints at its end: what was tried, and held."""

from collections import Counter

COUNTS: Counter[str] = Counter()


def held(what: str, count: int = 1) -> None:
    """Called behind the assertion."""
    COUNTS[what] += count
