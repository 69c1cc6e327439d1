"""Two systems over the same samples: the paired differences of their scores, and how sure one can be of the mean.

Which method finds which mean differences likely:

* ``"randomization"``: were the systems alike, each difference could as well have the other sign (Fisher's paired test;
  Smucker, Allan and Carterette, CIKM 2007, for retrieval). A shift of all differences is refused or not by comparing it
  with the mean over each set of flipped samples (the typical values of Hartigan, JASA 1969), so the same flips give the
  p-value and the interval: 0 lies outside of the interval where the p-value is at most 1 - confidence.
* ``"bootstrap"``: the samples are drawn anew with replacement (``scipy.stats.bootstrap``, percentiles).

Samples are sorted by their keys first: no order of arrival, and no number of ranks, changes a bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from map_metrics.conventions import one_of

METHODS = ("randomization", "bootstrap")
_BLOCK = 1 << 22  # elements of the largest temporary

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, repr=False, eq=False)
class Comparison:
    """What one system gains over another, sample by sample.

    Attributes:
        query: (Q,) int64: the keys of the compared samples, ascending.
        first: (Q,) float64: the scores of the system in question.
        second: (Q,) float64: the scores of the system it is compared with, the baseline.
        difference: (Q,) float64: first - second; positive where the first is better.
        num_skipped: samples left out because one of the two has no score for them.
        hardest: the samples of the lowest ``second``, the lowest first, and what became of them: dicts of ``query``,
            ``first``, ``second`` and ``difference``.
        interval: low and high end of the mean difference; infinite where so few samples bound nothing.
        p_value: two-sided (twice the smaller tail), of "the mean difference is 0".
        method: ``"randomization"`` or ``"bootstrap"``.
        num_resamples: how many resamples were asked for; where there are no more sign flips in all, each is used once.
        confidence: the level of the interval.
        seed: of the resamples.
    """

    query: Tensor
    first: Tensor
    second: Tensor
    difference: Tensor
    num_skipped: int
    hardest: list[dict[str, Any]]
    interval: tuple[float, float]
    p_value: float
    method: str
    num_resamples: int
    confidence: float
    seed: int

    @property
    def mean(self) -> float:
        """The mean difference; NaN without samples."""
        return _mean(self.difference.numpy())

    @property
    def wins(self) -> int:
        """Samples on which the first is better."""
        return int((self.difference > 0).sum())

    @property
    def losses(self) -> int:
        """Samples on which the first is worse."""
        return int((self.difference < 0).sum())

    @property
    def ties(self) -> int:
        """Samples with equal scores."""
        return int((self.difference == 0).sum())

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values; None for a mean or an end of the interval that is not finite."""
        names = ("query", "first", "second", "difference")
        columns = [getattr(self, name).tolist() for name in names]
        return {
            "mean": _finite(self.mean),
            "interval": [_finite(end) for end in self.interval],
            "p_value": self.p_value,
            "wins": self.wins,
            "losses": self.losses,
            "ties": self.ties,
            "num_skipped": self.num_skipped,
            "method": self.method,
            "num_resamples": self.num_resamples,
            "confidence": self.confidence,
            "seed": self.seed,
            "hardest": [dict(row) for row in self.hardest],
            "queries": [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)],
        }

    def summary(self) -> str:
        """A few lines of text: the mean difference, the counts, and the hardest samples of the baseline."""
        low, high = self.interval
        lines = [
            f"mean difference {self.mean:+.4f}, {100 * self.confidence:g} % interval [{low:+.4f}, {high:+.4f}], "
            f"p = {self.p_value:.4g} ({self.method}, {self.num_resamples} resamples, seed {self.seed})",
            f"{len(self.query)} compared: {self.wins} better, {self.losses} worse, {self.ties} equal; "
            f"{self.num_skipped} skipped",
        ]
        if self.hardest:
            lines.append(f"{'hardest':>20}{'second':>10}{'first':>10}{'difference':>12}")
        lines += [
            f"{row['query']:>20}{row['second']:>10.4f}{row['first']:>10.4f}{row['difference']:>+12.4f}"
            for row in self.hardest
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        low, high = self.interval
        return (
            f"Comparison(mean={self.mean:+.6f}, interval=({low:+.6f}, {high:+.6f}), p_value={self.p_value:.4g}, "
            f"wins={self.wins}, losses={self.losses}, ties={self.ties}, skipped={self.num_skipped})"
        )


def paired_comparison(
    keys: Tensor,
    first: Tensor,
    second: Tensor,
    *,
    hardest: int = 5,
    method: str = "randomization",
    num_resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compare two systems by their scores on the same samples.

    Args:
        keys: (n,) int64, distinct: what the samples are called.
        first: (n,) float64 scores of the system in question; NaN where it has none.
        second: (n,) float64 scores of the baseline, in the same order.
        hardest: how many of the baseline's lowest samples to list.
        method: ``"randomization"`` or ``"bootstrap"`` (which needs SciPy).
        num_resamples: random sign flips, or bootstrap samples.
        confidence: the level of the interval, between 0 and 1.
        seed: of ``numpy.random.default_rng``.

    Raises:
        ValueError: naming the argument that is none of the above.
        ImportError: if the method needs SciPy and it is missing.

    Example:
        >>> import torch
        >>> from map_metrics.comparison import paired_comparison
        >>> first, second = torch.tensor([0.5, 0.75, 1.0]), torch.tensor([0.25, 0.5, 0.5])
        >>> paired_comparison(torch.arange(3), first, second).p_value  # 2 of the 8 sign flips reach so far
        0.25
    """
    _check(hardest, method, num_resamples, confidence, seed)
    order = torch.sort(keys).indices
    keys, first, second = keys[order], first[order].double(), second[order].double()
    scored = ~(first.isnan() | second.isnan())
    keys, first, second = keys[scored], first[scored], second[scored]
    difference = first - second
    columns = {"query": keys, "first": first, "second": second, "difference": difference}
    lowest = torch.sort(second, stable=True).indices[:hardest]
    rows = zip(*(column[lowest].tolist() for column in columns.values()), strict=True)
    resampled = _bootstrap if method == "bootstrap" else _randomization
    interval, p_value = (-math.inf, math.inf), 1.0  # what one difference says, or none
    if len(difference) > 1:
        interval, p_value = resampled(difference.numpy(), num_resamples, confidence, seed)
    return Comparison(
        **columns,
        num_skipped=int((~scored).sum()),
        hardest=[dict(zip(columns, row, strict=True)) for row in rows],
        interval=interval,
        p_value=p_value,
        method=method,
        num_resamples=num_resamples,
        confidence=confidence,
        seed=seed,
    )


def _check(hardest: Any, method: Any, num_resamples: Any, confidence: Any, seed: Any) -> None:
    one_of("method", method, METHODS)
    for name, value, least in (("hardest", hardest, 0), ("num_resamples", num_resamples, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"Argument `{name}` must be an int of {least} or more, got {value!r}")
    if not isinstance(confidence, float) or not 0 < confidence < 1:
        raise ValueError(f"Argument `confidence` must be a float between 0 and 1, got {confidence!r}")


# --- which samples belong together ------------------------------------------------------------------------------------


def pairing(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], what: str) -> tuple[Tensor, Tensor]:
    """Orders that bring the same sample of two systems to the same place.

    By id where all have one; by place where none has.

    Args:
        first: (n,) ids and (n,) bool, whether each sample has an id.
        second: the same of the other system.
        what: the samples' name in messages, as "queries".

    Raises:
        ValueError: if the samples are not the same, naming the first that differ.
    """
    (ids, named), (other_ids, other_named) = first, second
    if not bool(named.any()) and not bool(other_named.any()) and len(named) == len(other_named):
        return torch.arange(len(named)), torch.arange(len(named))
    if not bool(named.all()) or not bool(other_named.all()):
        counts = [f"{int(flags.sum())} of {len(flags)}" for flags in (named, other_named)]
        raise ValueError(
            f"Argument `other` must hold the same {what}: both with ids, or as many without; "
            f"with ids are {counts[0]} here and {counts[1]} in `other`"
        )
    ids, order = torch.sort(ids)
    other_ids, other_order = torch.sort(other_ids)
    if not torch.equal(ids, other_ids):
        here, there = ids[~torch.isin(ids, other_ids)].tolist(), other_ids[~torch.isin(other_ids, ids)].tolist()
        raise ValueError(
            f"Argument `other` must hold the same {what}; only here: {_first_few(here)}; "
            f"only in `other`: {_first_few(there)}"
        )
    return order, other_order


def _first_few(ids: list[int]) -> str:
    if not ids:
        return "none"
    return f"{len(ids)} ({', '.join(map(str, ids[:5]))}{', ...' if len(ids) > 5 else ''})"


# --- differences -> interval and p-value ------------------------------------------------------------------------------


def _randomization(
    difference: Floats, num_resamples: int, confidence: float, seed: int
) -> tuple[tuple[float, float], float]:
    """Flip signs: all 2^n ways where those are no more than asked for, random ones otherwise.

    With all differences shifted by c, a flip reaches the observed mean exactly where the mean of the flipped
    differences is at most c. Their order statistics are therefore the shifts at which the test changes its mind.
    """
    exact = 2 ** len(difference) <= num_resamples
    means = _flipped_means(difference, 2 ** len(difference) if exact else num_resamples, None if exact else seed)
    # flips of nothing are as large and as small as what was observed, which random flips count once more (Phipson and
    # Smyth, 2010)
    count = len(means) + (not exact)
    always = int(np.isnan(means).sum()) + (not exact)
    means = np.sort(means[~np.isnan(means)])
    reached = always + _smaller_tail(means)
    rank = math.floor(round((1 - confidence) / 2 * count, 6)) + 1 - always
    interval = (float(means[rank - 1]), float(means[-rank])) if rank > 0 else (-math.inf, math.inf)
    return interval, min(1.0, 2 * reached / count)


def _flipped_means(difference: Floats, count: int, seed: int | None) -> Floats:
    """The mean of the differences in each of ``count`` sets, NaN for an empty one; without a seed in all sets."""
    n = len(difference)
    rng = None if seed is None else np.random.default_rng(seed)
    rounding = 16 * np.finfo(np.float64).eps * float(np.abs(difference).sum())
    means = []
    step = max(1, _BLOCK // n)
    for start in range(0, count, step):
        stop = min(start + step, count)
        if rng is None:
            flipped = (np.arange(start, stop)[:, None] >> np.arange(n)) & 1 == 1
        else:
            flipped = rng.integers(0, 2, size=(stop - start, n), dtype=bool)
        total = np.where(flipped, difference, 0.0).sum(1)
        total[np.abs(total) <= rounding] = 0.0  # differences that cancel out
        size = flipped.sum(1)
        means.append(np.where(size > 0, total / np.maximum(size, 1), np.nan))
    return np.concatenate(means)


def _bootstrap(
    difference: Floats, num_resamples: int, confidence: float, seed: int
) -> tuple[tuple[float, float], float]:
    """Percentiles of the means of samples drawn with replacement; the p-value counts those on each side of 0."""
    try:
        from scipy import stats  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(
            "method='bootstrap' needs SciPy: install it, or the extra `stats` (pip install 'torchmetrics-map[stats]'); "
            "method='randomization' does without"
        ) from error
    drawn = stats.bootstrap(
        (difference,),
        np.mean,
        n_resamples=num_resamples,
        batch=max(1, _BLOCK // len(difference)),
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    means, (low, high) = drawn.bootstrap_distribution, drawn.confidence_interval
    return (float(low), float(high)), min(1.0, 2 * (1 + _smaller_tail(means)) / (num_resamples + 1))


def _smaller_tail(means: Floats) -> int:
    return min(int((means <= 0).sum()), int((means >= 0).sum()))


def _mean(values: Floats) -> float:
    return math.fsum(values.tolist()) / len(values) if len(values) else math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
