"""What stands behind a number: per-query values, counts and the conventions used; scalars are views of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from numbers import Integral
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from map_metrics import plots
from map_metrics.average_precision import (
    Groups,
    chance_groups,
    hits_per_query,
    precision_recall_curve,
    ranked_average_precision,
)
from map_metrics.checks import count, entries, hashable
from map_metrics.comparison import Comparison, paired_comparison, pairing
from map_metrics.conventions import Conventions, flag
from map_metrics.devices import methods_on_cpu


class DistanceCounts(NamedTuple):
    """Items, and relevant items, at each Hamming distance 0 .. bits of each query: (Q, bits + 1) int64."""

    total: Tensor
    relevant: Tensor


@methods_on_cpu
@dataclass(frozen=True, repr=False)
class RetrievalResult:
    """The queries behind a mean average precision.

    Attributes:
        groups: the ranking of each query as tie groups.
        conventions: how it becomes a number.
        query: (Q,) int64: the id of each query, or its place in this result where it has none.
        named: (Q,) bool: whether the query has an id.
        num_duplicate_queries: queries left out because their ids had been seen.
        num_duplicate_items: items (of the gallery, or of a query's rows) left out because their ids had been seen.
        num_self: of a gallery metric, queries whose own id stands in the gallery too. ``exclude_self=True`` takes these
            items out of the rankings; without it they stay, a leak where both sides share one space of ids.
        num_conflicts: how many of the duplicates differed from the copy that was kept.
        distances: of a hashing metric, the counts at each Hamming distance; else None.
    """

    groups: Groups
    conventions: Conventions
    query: Tensor
    named: Tensor
    num_duplicate_queries: int = 0
    num_duplicate_items: int = 0
    num_self: int = 0
    num_conflicts: int = 0
    distances: DistanceCounts | None = None

    @property
    def num_relevant(self) -> Tensor:
        """(Q,) int64: relevant items of each query, retrieved or not."""
        return self.groups.num_relevant

    @property
    def num_items(self) -> Tensor:
        """(Q,) int64: items ranked for each query."""
        return self.groups.num_items

    @property
    def num_duplicates(self) -> int:
        """Queries and items left out because their ids had been seen."""
        return self.num_duplicate_queries + self.num_duplicate_items

    @property
    def num_empty(self) -> int:
        """Queries without a relevant item."""
        return int((self.num_relevant == 0).sum())

    @functools.cached_property
    def ap(self) -> Tensor:
        """Average precision of each query, (Q,) float64, or (Q, cut-offs) for several ``top_k``.

        Queries without a relevant item hold 0 or 1 as ``empty_target_action`` says, and NaN where they are skipped.
        """
        columns = [self._ap(self.groups, k) for k in self.conventions.cutoffs]
        return torch.stack(columns, 1) if isinstance(self.conventions.top_k, tuple) else columns[0]

    @functools.cached_property
    def num_hits(self) -> Tensor:
        """Relevant items among the first k, shaped as :attr:`ap`; a mean where a tie crosses the cut."""
        columns = [hits_per_query(self.groups, k) for k in self.conventions.cutoffs]
        return torch.stack(columns, 1) if isinstance(self.conventions.top_k, tuple) else columns[0]

    @functools.cached_property
    def chance(self) -> Tensor:
        """The expected value of a random order of every ranking (step interpolation, the first ``top_k``)."""
        groups, k = chance_groups(self.groups), self.conventions.cutoffs[0]
        return self._aggregate(self._ap(groups, k, ties="expected", interpolation="step"))

    def value(self) -> Tensor | dict[str, Tensor]:
        """What ``compute()`` returns: 0-d float64, or ``{"map@5": ...}`` for several ``top_k``."""
        if not isinstance(self.conventions.top_k, tuple):
            return self._aggregate(self.ap)
        return {f"map@{k}": self._aggregate(self.ap[:, i]) for i, k in enumerate(self.conventions.top_k)}

    def worst(self, n: int = 10) -> list[dict[str, Any]]:
        """The n queries of the lowest AP (at the first ``top_k``), the lowest first; skipped ones are left out."""
        ap = self._first_ap
        order = torch.sort(ap.nan_to_num(nan=torch.inf), stable=True).indices[: count("n", n)]
        rows = self.to_dict()["queries"]
        return [rows[i] for i in order.tolist() if not ap[i].isnan()]

    @functools.cached_property
    def first_hit(self) -> Tensor:
        """(Q,) float64: the rank of the first relevant item, in the mean over the orders of ties; NaN without one."""
        groups = self.groups
        first = torch.ones_like(groups.query, dtype=torch.bool)
        first[1:] = groups.query[1:] != groups.query[:-1]
        rank = groups.before + (groups.total.double() + 1) / (groups.relevant + 1)
        ranks = torch.full((len(self.query),), torch.nan, dtype=torch.float64)
        return ranks.index_put((groups.query[first],), rank[first])

    def precision_at(self, k: int) -> Tensor:
        """(Q,) float64: the share of relevant items among the first k; a mean where a tie crosses k."""
        k = _cutoff(k)
        return hits_per_query(self.groups, k) / k

    def recall_at(self, k: int) -> Tensor:
        """(Q,) float64: the share of the relevant items found in the first k; 0 for a query without one."""
        return hits_per_query(self.groups, _cutoff(k)) / self.num_relevant.clamp(min=1)

    def curve(self, points: int = 11) -> tuple[Tensor, Tensor]:
        """Recall levels 0 .. 1 and the mean interpolated precision of the queries that have a relevant item, (points,).

        One point a tie group, over the whole list: the curve of TREC's reports with 11 points.
        """
        points = count("points", points, least=2, most=1_000_000)
        precision = precision_recall_curve(self.groups, points)[:, self.num_relevant > 0]
        return torch.from_numpy(np.linspace(0, 1, points)), _column_means(precision.T)

    def precision_within(self, radius: int) -> Tensor:
        """(Q,) float64: the share of relevant items among those within a Hamming radius; 0 where there are none.

        Raises:
            ValueError: if the result is not of a hashing metric, or the radius not a whole number >= 0.
        """
        radius = count("radius", radius)
        total, relevant = (column[:, : radius + 1].sum(1).double() for column in self._distances())
        return relevant / total.clamp(min=1)

    def radius_curve(self, *, pooled: bool = False) -> tuple[Tensor, Tensor]:
        """Precision and recall at every Hamming radius 0 .. bits, (bits + 1,) float64 each.

        Args:
            pooled: count all pairs of all queries together (DCMH, ITQ); otherwise the mean over the queries, where an
                empty ball has precision 0, and recall is over the queries that have a relevant item.

        Raises:
            ValueError: if the result is not of a hashing metric.
        """
        flag("pooled", pooled)
        total, relevant = (column.cumsum(1).double() for column in self._distances())  # whole numbers, so exact
        if pooled:
            pairs, hits = total.sum(0), relevant.sum(0)
            return hits / pairs.clamp(min=1), hits / self.num_relevant.sum().clamp(min=1)
        judged = self.num_relevant > 0
        precision = relevant / total.clamp(min=1)
        recall = (relevant / self.num_relevant.clamp(min=1)[:, None])[judged]
        return _column_means(precision), _column_means(recall)

    def _distances(self) -> DistanceCounts:
        if self.distances is None:
            raise ValueError("A Hamming radius needs the result of a hashing metric; this one has no distances")
        return self.distances

    def by_group(self, groups: Sequence[Hashable] | Tensor) -> dict[Hashable, dict[str, float]]:
        """Mean AP (at the first ``top_k``) and number of queries of each group; skipped queries are left out.

        Args:
            groups: (Q,) the group of each query, in the order of :attr:`query`.

        Raises:
            ValueError: if there is not one group per query.
        """
        given = groups if isinstance(groups, Sequence) else entries("groups", groups)
        names = hashable("groups", given)
        if len(names) != len(self.query):
            raise ValueError(f"Argument `groups` must hold one group per query, {len(self.query)}, got {len(names)}")
        members: dict[Hashable, list[float]] = {}
        for name, ap in zip(names, self._first_ap.tolist(), strict=True):
            if not math.isnan(ap):
                members.setdefault(name, []).append(ap)
        return {name: {"map": math.fsum(ap) / len(ap), "count": len(ap)} for name, ap in members.items()}

    def compare(
        self,
        other: RetrievalResult,
        hardest: int = 5,
        *,
        method: str = "randomization",
        num_resamples: int = 10_000,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> Comparison:
        """What this result gains over another one of the same queries: ``difference = self - other`` of the APs.

        At the first ``top_k``. Queries are paired by id, or by place where no query has one; those that either result
        skips are left out and counted.

        Args:
            other: the baseline, under the same conventions.
            hardest: how many queries of the lowest AP in ``other`` to list, with what became of them.
            method: ``"randomization"`` or ``"bootstrap"`` (which needs SciPy): see :mod:`map_metrics.comparison`.
            num_resamples: random sign flips, or bootstrap samples.
            confidence: the level of the interval, between 0 and 1.
            seed: of the resamples.

        Raises:
            ValueError: if the queries or the conventions are not the same, naming what differs, or on a bad argument.
            ImportError: if the method needs SciPy and it is missing.

        Example:
            >>> import torch
            >>> from map_metrics import RetrievalMAP
            >>> results = []
            >>> for scores in ([[3.0, 2, 1], [1, 2, 3]], [[2.0, 3, 1], [1, 3, 2]]):
            ...     metric = RetrievalMAP()
            ...     metric.update(torch.tensor(scores), torch.tensor([[1, 0, 0], [0, 0, 1]]), ids=torch.tensor([4, 9]))
            ...     results.append(metric.result())
            >>> results[0].compare(results[1])
            Comparison(mean=+0.500000, interval=(-inf, +inf), p_value=0.5, wins=2, losses=0, ties=0, skipped=0)
        """
        if not isinstance(other, RetrievalResult):
            raise ValueError(f"Argument `other` must be a RetrievalResult, got {type(other).__name__}")
        _same_conventions(self.conventions, other.conventions)
        mine, theirs = pairing((self.query, self.named), (other.query, other.named), "queries")
        return paired_comparison(
            self.query[mine],
            self._first_ap[mine],
            other._first_ap[theirs],
            hardest=hardest,
            method=method,
            num_resamples=num_resamples,
            confidence=confidence,
            seed=seed,
        )

    @property
    def _first_ap(self) -> Tensor:
        return self.ap if self.ap.ndim == 1 else self.ap[:, 0]

    def plot_curve(self, ax: Any = None) -> Any:
        """The mean precision at each recall: figure and axes of :func:`map_metrics.plots.plot_curve`."""
        return plots.plot_curve(self, ax=ax)

    def plot_per_query(self, ax: Any = None) -> Any:
        """How many queries have which AP: figure and axes of :func:`map_metrics.plots.plot_per_query`."""
        return plots.plot_per_query(self, ax=ax)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values: headline numbers, conventions, and one row per query."""
        value = self.value()
        columns = {
            "query": self.query,
            "named": self.named,
            "ap": self.ap,
            "num_relevant": self.num_relevant,
            "num_items": self.num_items,
            "num_hits": self.num_hits,
        }
        names, lists = list(columns), [_json(column.tolist()) for column in columns.values()]
        return {
            "value": {k: float(v) for k, v in value.items()} if isinstance(value, dict) else float(value),
            "conventions": {k: _plain(v) for k, v in vars(self.conventions).items()},
            "num_queries": len(self.query),
            "num_empty": self.num_empty,
            "num_duplicates": self.num_duplicates,
            "num_duplicate_queries": self.num_duplicate_queries,
            "num_duplicate_items": self.num_duplicate_items,
            "num_self": self.num_self,
            "num_conflicts": self.num_conflicts,
            "queries": [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)],
        }

    def to_html(self, path: str | PathLike[str], *, title: str | None = None) -> None:
        """Write one self-contained page: see :func:`map_metrics.report.to_html`."""
        from map_metrics.report import to_html

        to_html(self, path, title=title)

    def notes(self) -> dict[str, str]:
        """What a reader of the number should know: topic -> sentence. The metrics warn of each once."""
        notes = {}
        if self.num_conflicts:
            notes["conflicts"] = (
                f"{self.num_conflicts} rows repeat an id with another content; of each id one copy is kept (the "
                "smallest, the same on any number of ranks)."
            )
        if self._far_below_chance():
            notes["chance"] = (
                "The mean average precision is far below that of a random order. If a small score is a good one (a "
                "distance), negate the scores or pass `largest=False`."
            )
        return notes

    def _far_below_chance(self) -> bool:
        """By five standard errors, over ten queries or more; a mean above 0.5 is taken as good without a look."""
        k = self.conventions.cutoffs[0]
        counted = self.num_relevant > 0
        if int(counted.sum()) < 10:
            return False
        plain = self.groups._replace(gain=None, gain_before=None)
        ap = ranked_average_precision(plain, top_k=k)[counted]
        if float(ap.mean()) > 0.5:
            return False
        margin = ranked_average_precision(chance_groups(plain), top_k=k)[counted] - ap
        return float(margin.mean()) > 5 * float(margin.std()) / len(ap) ** 0.5 + 1e-9

    def _ap(self, groups: Groups, k: Any, *, ties: str | None = None, interpolation: str | None = None) -> Tensor:
        c = self.conventions
        ap = ranked_average_precision(
            groups,
            top_k=k,
            denominator=c.denominator,
            ties=ties or c.ties,
            interpolation=interpolation or c.interpolation,
        )
        empty = self.num_relevant == 0
        if c.empty_target_action == "error" and bool(empty.any()):
            first = int(self.query[empty][0])
            raise ValueError(
                f"{int(empty.sum())} queries have no relevant item, the first of them query {first}; "
                "choose another `empty_target_action` than 'error' to count or skip them"
            )
        return ap.masked_fill(empty, {"neg": 0.0, "error": 0.0, "pos": 1.0, "skip": torch.nan}[c.empty_target_action])

    def _aggregate(self, ap: Tensor) -> Tensor:
        return self.conventions.aggregate(ap[~ap.isnan()])

    def __repr__(self) -> str:
        if self.conventions.empty_target_action == "error" and self.num_empty:
            return f"RetrievalResult(queries={len(self.query)}, empty={self.num_empty}, {self.conventions})"
        value = self.value()
        shown = {k: round(float(v), 6) for k, v in value.items()} if isinstance(value, dict) else f"{float(value):.6f}"
        return f"RetrievalResult(map={shown}, queries={len(self.query)}, empty={self.num_empty}, {self.conventions})"


def _json(values: list[Any]) -> list[Any]:
    """NaN, the AP of a skipped query, as None."""
    return [_json(v) if isinstance(v, list) else None if v != v else v for v in values]


def _same_conventions(mine: Conventions, theirs: Conventions) -> None:
    """Refuse APs of two kinds; only the aggregation may differ, and further cut-offs."""
    for name in ("denominator", "ties", "interpolation", "empty_target_action", "top_k"):
        here, there = ((c.cutoffs[0] if name == "top_k" else getattr(c, name)) for c in (mine, theirs))
        if here != there:
            raise ValueError(
                f"Argument `other` must have the same conventions, but `{name}` is {here!r} here and {there!r} there"
            )


def _plain(value: Any) -> Any:
    """A convention as plain Python: of a function its name."""
    return getattr(value, "__name__", type(value).__name__) if callable(value) else value


def _column_means(values: Tensor) -> Tensor:
    """Mean of each column, whatever the order of the rows."""
    means = [math.fsum(column) / max(len(column), 1) for column in values.T.tolist()]
    return torch.tensor(means, dtype=torch.float64)


def _cutoff(k: Any) -> int:
    if not isinstance(k, Integral) or isinstance(k, bool) or not 0 < int(k) < 2**63:
        raise ValueError(f"Argument `k` must be a positive int of 64 bits, got {k!r}")
    return int(k)
