"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import tally
import torch
from distributed import Ranks


@pytest.fixture
def num_threads() -> Iterator[Callable[[int], None]]:
    """Set torch's number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def group(size: int) -> Iterator[Ranks]:
    ranks = Ranks(size)
    yield ranks
    ranks.stop()


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    """Two gloo processes."""
    yield from group(2)


@pytest.fixture(scope="session")
def three_ranks() -> Iterator[Ranks]:
    """Three gloo processes."""
    yield from group(3)


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    """Four gloo processes."""
    yield from group(4)


def pytest_terminal_summary(terminalreporter) -> None:
    """What stands in the README under "How exact is it"."""
    if tally.COUNTS:
        terminalreporter.section("how exact is it")
        for what, count in sorted(tally.COUNTS.items()):
            terminalreporter.write_line(f"{what}: {count:,}")
