"""Average precision over ranked tie groups: the maths that every metric of this package shares.

A query's ranking is a list of *tie groups*, best first: a group holds ``total`` items of one score, ``relevant`` of
them relevant. Average precision is a sum of one contribution per group that holds a relevant item, over a denominator:

    AP@k = (sum over hits in the first k of the precision at that hit) / denominator

so groups without a relevant item need not be kept: :class:`Groups` stores, for each of the others, what stands above
it. Ties are resolved in closed form (McSherry and Najork, ECIR 2008; He et al., CVPR 2018): the mean over all orders
of the tied items, or the exact maximum or minimum over those orders.

Counts are int64 and values float64. Only integers are ever accumulated over queries, and each query's contributions are
added in rank order, so a value does not depend on which other queries stand beside it. No state, no input checks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from map_metrics import checks
from map_metrics.conventions import Conventions
from map_metrics.devices import on_cpu
from map_metrics.interpolation import GRIDS, envelope, precision_at_recall

UNLIMITED = torch.iinfo(torch.int64).max
_TABULATED = 32  # harmonic differences below this come from a table, above from an asymptotic series
_BLOCK = 1 << 22  # elements of the largest temporary


class Groups(NamedTuple):
    """Tie groups that hold a relevant item, of Q queries; int64 tensors on the CPU.

    Attributes:
        query: (B,) the query of each group, 0 .. Q - 1, non-decreasing; the groups of one query stand best first.
        before: (B,) items ranked above the group.
        found: (B,) relevant items ranked above the group.
        total: (B,) items in the group.
        relevant: (B,) relevant items in the group, at least 1.
        num_relevant: (Q,) relevant items of the query, retrieved or not.
        num_items: (Q,) retrieved items of the query.
        gain: None, or (B,) float64: the summed gain of the group's relevant items (weighted AP).
        gain_before: None, or (B,) float64: the summed gain of the items above.
    """

    query: Tensor
    before: Tensor
    found: Tensor
    total: Tensor
    relevant: Tensor
    num_relevant: Tensor
    num_items: Tensor
    gain: Tensor | None = None
    gain_before: Tensor | None = None


class _Slots(NamedTuple):
    """The first ``cut`` slots of tie groups: what every closed form below takes (float64, one entry a group)."""

    before: Tensor
    found: Tensor
    total: Tensor
    relevant: Tensor
    cut: Tensor
    gain: Tensor
    gain_before: Tensor


# --- harmonic differences ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _harmonic_table() -> Tensor:
    """(33, 33): entry [a, b] is 1/(a+1) + ... + 1/b, correctly rounded; 0 where b <= a."""
    size = _TABULATED + 1
    rows = [[math.fsum(1 / j for j in range(a + 1, b + 1)) for b in range(size)] for a in range(size)]
    return torch.tensor(rows, dtype=torch.float64)


def _correction(y: Tensor) -> Tensor:
    square = y * y
    return (1 / 24 - (7 / 960 - (31 / 8064 - 127 / 30720 / square) / square) / square) / square


def harmonic_difference(start: Tensor, count: Tensor) -> Tensor:
    """``H(start + count) - H(start)`` of the harmonic numbers, without the cancellation of subtracting them.

    Args:
        start: float64 tensor of whole numbers >= 0.
        count: float64 tensor of whole numbers >= 0, of the same shape.
    """
    end = start + count
    low, high = start.clamp(max=_TABULATED), end.clamp(max=_TABULATED)
    table = _harmonic_table()[low.long(), high.long()]
    low, high = start.clamp(min=_TABULATED) + 0.5, end.clamp(min=_TABULATED) + 0.5
    return table + torch.log1p((high - low) / low) + _correction(high) - _correction(low)


# --- contribution of one tie group, one function per convention -------------------------------------------------------


def _step_expected(s: _Slots) -> Tensor:
    """Mean over all orders of the group: slot t holds ``gain`` / n of a hit, and the others rise evenly."""
    single = (s.relevant * s.gain_before + s.gain) / (s.before + 1)
    slope = s.gain * (s.relevant - 1) / (s.total - 1).clamp(min=1)
    offset = s.relevant * s.gain_before + s.gain - slope * (s.before + 1)
    tied = (s.cut * slope + offset * harmonic_difference(s.before, s.cut)) / s.total
    return torch.where(s.total == 1, single * s.cut, tied)


def _step_optimistic(s: _Slots) -> Tensor:
    """The relevant items of the group stand first."""
    hits = torch.minimum(s.relevant, s.cut)
    return hits + (s.found - s.before) * harmonic_difference(s.before, hits)


def _step_pessimistic(s: _Slots) -> Tensor:
    """The relevant items of the group stand last."""
    others = s.total - s.relevant
    hits = (s.cut - others).clamp(min=0)
    return hits + (s.found - s.before - others) * harmonic_difference(s.before + others, hits)


def _trapezoid_expected(s: _Slots) -> Tensor:
    """Mean of the precision at and just before each hit, over all orders (Oxford/Paris ``compute_ap``, Market-1501)."""
    rate = (s.relevant - 1) / (s.total - 1).clamp(min=1)
    top = s.before == 0  # the precision "before" rank 1 is 1 by convention
    previous = s.before.clamp(min=1) - 1
    tied = s.cut * rate + (s.found - rate * s.before) * harmonic_difference(previous, s.cut)
    earlier = torch.where(top, (1 + (s.cut - 1) * rate).clamp(min=0), tied) * s.relevant / s.total
    single = torch.where(top, 1.0, s.found / s.before.clamp(min=1)) * s.relevant * s.cut
    return (_step_expected(s) + torch.where(s.total == 1, single, earlier)) / 2


def _threshold(s: _Slots) -> Tensor:
    """One precision-recall point per distinct score (scikit-learn ``average_precision_score``)."""
    return s.relevant * ((s.found + s.relevant) / (s.before + s.total))


_Contribution = Callable[[_Slots], Tensor]
_CONTRIBUTIONS: dict[tuple[str, str], _Contribution] = {
    ("step", "expected"): _step_expected,
    ("step", "optimistic"): _step_optimistic,
    ("step", "pessimistic"): _step_pessimistic,
    ("step", "stable"): _step_expected,  # groups of one item
    ("step", "threshold"): _threshold,
    ("trapezoid", "expected"): _trapezoid_expected,
    ("trapezoid", "stable"): _trapezoid_expected,
}

# --- the public form -------------------------------------------------------------------------------------------------


@on_cpu
def average_precision(
    total: Tensor,
    relevant: Tensor,
    *,
    top_k: int | Literal["R"] | None = None,
    num_relevant: Tensor | int | None = None,
    denominator: str = "relevant",
    ties: str = "expected",
    interpolation: str = "step",
) -> Tensor:
    """Average precision from the counts of tie groups.

    Args:
        total: (..., B) integers >= 0: items in each tie group, best group first.
        relevant: (..., B) integers: how many of them are relevant.
        top_k: cut-off: None, a positive int, or ``"R"`` for each list's own number of relevant items.
        num_relevant: relevant items in all where the list does not hold every one of them (a truncated or approximate
            search): an int or integers of shape (...), at least the relevant items given.
        denominator: what the sum of precisions is divided by: ``"relevant"`` all relevant items (trec_eval), ``"min"``
            min(relevant, k) (Kaggle), ``"hits"`` relevant items found in the first k (deep hashing), ``"k"``.
        ties: ``"expected"``, ``"optimistic"``, ``"pessimistic"``: mean, maximum, minimum over all orders of the tied
            items; ``"stable"``: every group must be one item; ``"threshold"``: one point a group (scikit-learn).
        interpolation: ``"step"``, ``"trapezoid"``, ``"envelope"``, ``"11-point"``, ``"40-point"`` or ``"101-point"``.

    Returns:
        float64 of shape (...), on the CPU; 0.0 where nothing is relevant.

    Raises:
        ValueError: if a count or a convention is not one of the above.

    Example:
        >>> import torch
        >>> from map_metrics import average_precision
        >>> average_precision(torch.tensor([1, 3, 1]), torch.tensor([1, 1, 0]))  # a hit, then one among three tied
        tensor(0.8611, dtype=torch.float64)
    """
    conventions = Conventions(top_k=top_k, denominator=denominator, ties=ties, interpolation=interpolation)
    if isinstance(conventions.top_k, tuple):
        raise ValueError(f"Argument `top_k` must be None, a positive int or 'R' here, got {top_k!r}")
    total, relevant, known = checks.group_counts(total, relevant, num_relevant, ties)
    shape = (math.prod(total.shape[:-1]), total.shape[-1])
    groups = groups_from_counts(total.reshape(shape), relevant.reshape(shape), known)
    values = ranked_average_precision(
        groups, top_k=top_k, denominator=denominator, ties=ties, interpolation=interpolation
    )
    return values.reshape(total.shape[:-1])


def groups_from_counts(total: Tensor, relevant: Tensor, num_relevant: Tensor | None = None) -> Groups:
    """(Q, B) counts of all tie groups, best first -> :class:`Groups`."""
    query, place = relevant.nonzero(as_tuple=True)
    items, found = total.cumsum(1), relevant.cumsum(1)
    n, r = total[query, place], relevant[query, place]
    last = slice(total.shape[1] - 1, None)
    known = found[:, last].sum(1) if num_relevant is None else num_relevant
    return Groups(query, items[query, place] - n, found[query, place] - r, n, r, known, items[:, last].sum(1))


# --- average precision of many queries --------------------------------------------------------------------------------


def ranked_average_precision(
    groups: Groups,
    *,
    top_k: int | Literal["R"] | None = None,
    denominator: str = "relevant",
    ties: str = "expected",
    interpolation: str = "step",
) -> Tensor:
    """Average precision of each query; (Q,) float64, 0 where nothing is relevant or nothing was found.

    Args:
        groups: the ranking; with ``ties="stable"`` every group is one item.
        top_k: cut-off: None, a positive int, or ``"R"`` for each query's own number of relevant items.
        denominator: ``"relevant"``, ``"min"``, ``"hits"`` or ``"k"``.
        ties: ``"expected"``, ``"optimistic"``, ``"pessimistic"``, ``"stable"`` or ``"threshold"``.
        interpolation: ``"step"``, ``"trapezoid"``, ``"envelope"``, ``"11-point"``, ``"40-point"`` or ``"101-point"``.
    """
    limit = _limits(groups, top_k)
    cut = torch.minimum((limit[groups.query] - groups.before).clamp(min=0), groups.total)
    slots = _slots(groups, cut)
    hits, crossing = _hits(groups, cut)
    divisor = {
        "relevant": groups.num_relevant,
        "min": torch.minimum(groups.num_relevant, limit),
        "hits": hits,
        "k": limit,
    }[denominator].double()
    if interpolation in GRIDS or interpolation == "envelope":
        return _interpolated(groups, cut, hits, divisor, interpolation)

    contribution = _CONTRIBUTIONS[interpolation, ties]
    values = contribution(slots)
    values = torch.where(cut > 0, values, 0.0)
    result = _ratio(_sum_per_query(values, groups), divisor)
    if denominator == "hits" and ties in _CROSSING and bool(crossing.any()):
        above = _sum_per_query(torch.where(crossing, 0.0, values), groups)[groups.query[crossing]]
        edge = _Slots(*(column[crossing] for column in slots))
        result[groups.query[crossing]] = _CROSSING[ties](edge, above, contribution)
    return result


def hits_per_query(groups: Groups, top_k: int | Literal["R"] | None = None) -> Tensor:
    """Relevant items in the first ``top_k`` of each query, (Q,) float64: a mean where a tie crosses the cut."""
    cut = torch.minimum((_limits(groups, top_k)[groups.query] - groups.before).clamp(min=0), groups.total)
    return _sum_per_query(cut.double() * groups.relevant / groups.total, groups)


def chance_groups(groups: Groups) -> Groups:
    """The same queries with all their retrieved items tied: the ranking of a random order."""
    retrieved = torch.zeros_like(groups.num_items).scatter_add_(0, groups.query, groups.relevant)
    query = retrieved.nonzero()[:, 0]
    zero = torch.zeros_like(query)
    gain = None if groups.gain is None else _sum_per_query(groups.gain, groups)[query]
    return Groups(
        query=query,
        before=zero,
        found=zero,
        total=groups.num_items[query],
        relevant=retrieved[query],
        num_relevant=groups.num_relevant,
        num_items=groups.num_items,
        gain=gain,
        gain_before=None if gain is None else torch.zeros_like(gain),
    )


def _limits(groups: Groups, top_k: int | Literal["R"] | None) -> Tensor:
    if top_k == "R":
        return groups.num_relevant
    return torch.full_like(groups.num_relevant, UNLIMITED if top_k is None else min(top_k, UNLIMITED))


def _slots(groups: Groups, cut: Tensor) -> _Slots:
    found, relevant = groups.found.double(), groups.relevant.double()
    gain = relevant if groups.gain is None else groups.gain
    gain_before = found if groups.gain_before is None else groups.gain_before
    return _Slots(groups.before.double(), found, groups.total.double(), relevant, cut.double(), gain, gain_before)


def _hits(groups: Groups, cut: Tensor) -> tuple[Tensor, Tensor]:
    """Relevant items surely in the first k (Q,), and which groups hold an uncertain number of them (B,)."""
    crossing = (cut > 0) & (cut < groups.total) & (groups.relevant < groups.total)
    sure = torch.where(crossing, 0, torch.minimum(groups.relevant, cut))
    return torch.zeros_like(groups.num_relevant).scatter_add_(0, groups.query, sure), crossing


def _sum_per_query(values: Tensor, groups: Groups) -> Tensor:
    """Sums in rank order; the CPU's 1-d scatter_add is sequential, so other queries cannot change a bit."""
    return torch.zeros(len(groups.num_relevant), dtype=torch.float64).scatter_add_(0, groups.query, values)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    return torch.where(denominator > 0, numerator / denominator.clamp(min=1), 0.0)


# --- the hits denominator where a tie crosses the cut ----------------------------------------------------------------
# With j of the group's relevant items in its m open slots the value is (above + S(j)) / (found + j): the slots then are
# a group of m items, j of them relevant. Below: its mean over the hypergeometric j, its maximum and its minimum.


def _value_at(j: Tensor, edge: _Slots, above: Tensor, contribution: _Contribution) -> Tensor:
    share = torch.where(edge.relevant > 0, j / edge.relevant.clamp(min=1), 0.0)
    inside = edge._replace(total=edge.cut, relevant=j, gain=edge.gain * share)
    return _ratio(above + contribution(inside), edge.found + j)


def _hit_range(edge: _Slots) -> tuple[Tensor, Tensor]:
    return (edge.cut - (edge.total - edge.relevant)).clamp(min=0), torch.minimum(edge.relevant, edge.cut)


def _crossing_expected(edge: _Slots, above: Tensor, contribution: _Contribution) -> Tensor:
    """Mean over j, in blocks of queries.

    With s the smallest of the four margins of the hypergeometric distribution, j further than 5 sqrt(s) from its mean
    has a mass below 1e-21 (Hoeffding) and is left out.
    """
    low, high = _hit_range(edge)
    margin = torch.stack([edge.cut, edge.total - edge.cut, edge.relevant, edge.total - edge.relevant]).amin(0)
    reach = (5 * margin.sqrt()).ceil() + 1
    mean = (edge.cut * edge.relevant / edge.total).floor()
    low, high = torch.maximum(low, mean - reach), torch.minimum(high, mean + reach)
    width = int((high - low).max()) + 1
    result = torch.empty_like(above)
    for rows in torch.arange(len(above)).split(max(1, _BLOCK // width)):
        block = _Slots(*(column[rows, None] for column in edge))
        result[rows] = _hypergeometric_mean(block, above[rows, None], contribution, low[rows], high[rows])
    return result


def _hypergeometric_mean(edge: _Slots, above: Tensor, contribution: _Contribution, low: Tensor, high: Tensor) -> Tensor:
    """Rows are independent: cumulative sums run along a row, and padding adds zeros at its end."""
    j = low[:, None] + torch.arange(int((high - low).max()) + 1)
    valid = j <= high[:, None]
    j = torch.where(valid, j, high[:, None])
    rest = edge.total - edge.relevant - edge.cut
    up = ((edge.relevant - j + 1) * (edge.cut - j + 1)).log() - (j * (rest + j)).log()
    up[:, 0] = 0
    log_mass = torch.where(valid, up, 0.0).cumsum(1)
    mass = torch.where(valid, (log_mass - log_mass.amax(1, keepdim=True)).exp(), 0.0)
    values = _value_at(j, edge, above, contribution)
    return (mass * values).cumsum(1)[:, -1] / mass.cumsum(1)[:, -1]


def _crossing_maximum(edge: _Slots, above: Tensor, contribution: _Contribution) -> Tensor:
    """S is convex in j, so S over a rising affine function is quasi-convex: its maximum stands at an end."""
    low, high = _hit_range(edge)
    return torch.maximum(*(_value_at(j, edge, above, contribution) for j in (low, high)))


def _crossing_minimum(edge: _Slots, above: Tensor, contribution: _Contribution) -> Tensor:
    """S is convex in j, so bisect for the first j after which the value rises.

    There (S(j+1) - S(j)) (found + j) >= above + S(j), and the difference of the two sides never falls.
    """
    low, high = _hit_range(edge)
    first, last = low, high
    while bool((first < last).any()):
        j = ((first + last) / 2).floor()
        inside = edge._replace(total=edge.cut, relevant=j)
        start = edge.before + edge.cut - j
        rise = harmonic_difference(start, j) + (edge.found + 1) / start.clamp(min=1)
        rises = rise * (edge.found + j) >= above + contribution(inside)
        first, last = torch.where(rises, first, torch.minimum(j + 1, last)), torch.where(rises, j, last)
    return torch.where(low + edge.found == 0, 0.0, _value_at(first, edge, above, contribution))


_CROSSING = {
    "expected": _crossing_expected,
    "optimistic": _crossing_maximum,
    "pessimistic": _crossing_minimum,
}

# --- interpolated precision (VOC, KITTI, COCO grids) ------------------------------------------------------------------


def _interpolated(groups: Groups, cut: Tensor, hits: Tensor, divisor: Tensor, interpolation: str) -> Tensor:
    """Area under the envelope of precision, or its mean over a grid of recalls, counted against the denominator."""
    inside = cut > 0
    query, found, precision = envelope(*(column[inside] for column in groups[:5]))
    if interpolation == "envelope":
        kept = groups._replace(query=query)
        return _ratio(_sum_per_query(groups.relevant[inside] * precision, kept), divisor)
    total = torch.zeros_like(divisor)
    for recall in GRIDS[interpolation]:
        total += precision_at_recall(recall, query, found, precision, hits, divisor)
    return total / len(GRIDS[interpolation])


def precision_recall_curve(groups: Groups, points: int) -> Tensor:
    """(points, Q) float64: the envelope of each query's precision at recalls 0 .. 1, over the whole list."""
    query, found, precision = envelope(*groups[:5])
    hits = torch.zeros_like(groups.num_relevant).scatter_add_(0, groups.query, groups.relevant)
    divisor = groups.num_relevant.double()
    levels = np.linspace(0, 1, points).tolist()
    return torch.stack([precision_at_recall(level, query, found, precision, hits, divisor) for level in levels])
