"""Average precision by its definition: plain loops, every order of tied items, exact fractions; no code of the subject.

A tie group is a pair (items, relevant items), best group first; a ranked list holds 0 and 1 (or gains).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from itertools import chain, combinations, pairwise, permutations, product

import numpy as np

DENOMINATORS = ("relevant", "min", "hits", "k")
PRECISE = Context(prec=50)
GRIDS = {"11-point": np.linspace(0, 1, 11), "40-point": np.linspace(0, 1, 41)[1:], "101-point": np.linspace(0, 1, 101)}


# --- one ranked list --------------------------------------------------------------------------------------------------


def cut_off(k, known: int) -> float:
    """None, "R" or an int as a number."""
    return math.inf if k is None else known if k == "R" else k


def divisor(denominator: str, known: int, k: float, hits: int) -> int:
    return {"relevant": known, "min": min(known, k), "hits": hits, "k": k}[denominator]


def precision_sums(ranked, trapezoid: bool = False) -> list[tuple[int, Fraction]]:
    """For k = 0 .. n: hits in the first k, and the sum of precision (or gain above and at, over rank) at them."""
    hits, gain, total, rows = 0, Fraction(0), Fraction(0), [(0, Fraction(0))]
    for rank, item in enumerate(ranked, 1):
        if item:
            before = gain / (rank - 1) if rank > 1 else Fraction(1)
            hits, gain = hits + 1, gain + Fraction(item)
            total += (before + gain / rank) / 2 if trapezoid else gain / rank
        rows.append((hits, total))
    return rows


def average_precision(ranked, known=None, k=None, denominator="relevant", trapezoid=False) -> Fraction:
    """Average precision of one ranked list."""
    known = sum(map(bool, ranked)) if known is None else known
    k = cut_off(k, known)
    hits, total = precision_sums(ranked, trapezoid)[min(k, len(ranked))]
    d = divisor(denominator, known, k, hits)
    return total / d if d else Fraction(0)


# --- every order of tied items ----------------------------------------------------------------------------------------


def orders(groups) -> Iterator[list[int]]:
    """Every ranked list of 0 and 1 that the tie groups allow; all are equally likely."""
    parts = [[[int(i in hits) for i in range(n)] for hits in combinations(range(n), r)] for n, r in groups]
    return (list(chain(*pick)) for pick in product(*parts))


def gain_orders(groups) -> Iterator[list[Fraction]]:
    """Every order of groups given as lists of gains (0 for an irrelevant item)."""
    return (list(chain(*pick)) for pick in product(*(permutations(map(Fraction, g)) for g in groups)))


def over_orders(lists, known, cutoffs, trapezoid=False) -> dict[tuple, tuple[Fraction, Fraction, Fraction]]:
    """(k, denominator) -> mean, maximum, minimum of the average precision over ranked lists."""
    values: dict[tuple, list[Fraction]] = {}
    for ranked in lists:
        sums = precision_sums(ranked, trapezoid)
        for k in cutoffs:
            limit = cut_off(k, known)
            hits, total = sums[min(limit, len(ranked))]
            for denominator in DENOMINATORS:
                if not (denominator == "k" and k is None):
                    d = divisor(denominator, known, limit, hits)
                    values.setdefault((k, denominator), []).append(total / d if d else Fraction(0))
    return {key: (sum(v) / len(v), max(v), min(v)) for key, v in values.items()}


# --- one point a tie group --------------------------------------------------------------------------------------------


def threshold(groups, known) -> Fraction:
    """Sum over distinct scores of the rise in recall times the precision there (scikit-learn)."""
    items = found = 0
    total = Fraction(0)
    for n, r in groups:
        items, found = items + n, found + r
        if r:
            total += Fraction(r, known) * Fraction(found, items)
    return total


def interpolated(groups, known, rule, k=None, denominator="relevant") -> float:
    """VOC 2010's area under the precision envelope, or its mean over a grid of recalls compared in float64."""
    k = cut_off(k, known)
    points, items, found = [(0, Fraction(0))], 0, 0  # (found, precision) at the end of each group
    for n, r in groups:
        items, found = items + n, found + r
        if 0 < items <= k:
            points.append((found, Fraction(found, items)))
    d = divisor(denominator, known, k, points[-1][0])
    if not d:
        return 0.0
    if rule == "envelope":
        rises = [(after[0] - before[0], i) for i, (before, after) in enumerate(pairwise(points), 1)]
        return float(sum(Fraction(rise, d) * max(p for _, p in points[i:]) for rise, i in rises if rise))
    grid = GRIDS[rule]
    return float(
        sum(max([p for f, p in points if f / d >= recall], default=Fraction(0)) for recall in grid) / len(grid)
    )


# --- lists too long to enumerate --------------------------------------------------------------------------------------


def slot_sum(before, above, n, r, m, gain=None) -> float:
    """Mean sum of precisions in the first m of n tied slots: r hits of summed gain ``gain``; ``above`` gain before.

    Slot t holds each item with probability 1/n, and each of the others stands in the t - 1 slots above it with
    probability (t - 1) / (n - 1).
    """
    gain = r if gain is None else gain
    rise = gain * (r - 1) / (n * (n - 1)) if n > 1 else 0.0
    return math.fsum(((r * above + gain) / n + (t - 1) * rise) / (before + t) for t in range(1, m + 1))


def expected(groups, known=None, k=None, denominator="relevant") -> float:
    """Mean average precision over all orders, slot by slot. Groups: (n, r) or (n, r, gain)."""
    groups = [(*g, g[1]) if len(g) == 2 else g for g in groups]
    known = sum(g[1] for g in groups) if known is None else known
    k = cut_off(k, known)
    items = found = 0
    above = total = 0.0
    for n, r, gain in groups:
        m = max(0, min(n, k - items))
        if 0 < m < n and denominator == "hits":
            mean = 0.0
            for j in range(max(0, m - (n - r)), min(r, m) + 1):
                chance = math.comb(r, j) * math.comb(n - r, m - j) / math.comb(n, m)
                if found + j:
                    inside = slot_sum(items, above, m, j, m, gain * j / r if r else 0.0)
                    mean += chance * (total + inside) / (found + j)
            return mean
        total += slot_sum(items, above, n, r, m, gain) if m and r else 0.0
        items, found, above = items + n, found + (r if m == n else 0), above + gain
    d = divisor(denominator, known, k, found)
    return total / d if d else 0.0


def harmonic_difference(start: int, count: int) -> Decimal:
    """H(start + count) - H(start) to some 40 digits: term by term up to 1000, Euler and Maclaurin's series above."""
    with localcontext(PRECISE):
        end, knee = start + count, 1000
        total = sum((1 / Decimal(i) for i in range(start + 1, min(end, knee) + 1)), Decimal(0))
        return total + (_series(end) - _series(max(start, knee)) if end > knee else 0)


def _series(n: int) -> Decimal:
    """H(n) less Euler's constant."""
    x = 1 / Decimal(n) ** 2
    bernoulli = -x / 12 + x**2 / 120 - x**3 / 252 + x**4 / 240 - x**5 / 132 + x**6 * 691 / 32760 - x**7 / 12
    return Decimal(n).ln() + 1 / (2 * Decimal(n)) + bernoulli


def decimal_expected_sum(before, above, n, r, m) -> Decimal:
    """``slot_sum`` without gains for n up to 10^9 and more."""
    with localcontext(PRECISE):
        rise = Decimal(r - 1) / (n - 1) if n > 1 else Decimal(0)
        steps = m * rise + (above + 1 - rise * (before + 1)) * harmonic_difference(before, m)
        return Decimal(r) / n * steps


def decimal_hits(before, found, total, n, r, m) -> tuple[Decimal, Decimal, Decimal]:
    """Mean, maximum and minimum of AP over the hits found, where the last group (n, r) is cut after m slots.

    Every possible number j of hits in the m slots is visited. ``total``: sum of precisions above (exact, one value).
    """
    with localcontext(PRECISE):
        low, high = max(0, m - (n - r)), min(r, m)
        whole = harmonic_difference(before, m)
        first, last = Decimal(0), Decimal(0)  # H differences of the first j slots and of the last j slots
        weight, weights, mean, best, worst = Decimal(1), Decimal(0), Decimal(0), Decimal(0), Decimal(2)
        for j in range(high + 1):
            if j:
                first, last = first + 1 / Decimal(before + j), last + 1 / Decimal(before + m - j + 1)
            if j < low:
                continue
            if j > low:
                weight = weight * (r - j + 1) * (m - j + 1) / (j * (n - r - m + j))
            weights += weight
            if not found + j:
                worst = Decimal(0)
                continue
            rise = Decimal(j - 1) / (m - 1) if m > 1 else Decimal(0)
            inside = Decimal(j) / m * (m * rise + (found + 1 - rise * (before + 1)) * whole)
            mean += weight * (total + inside) / (found + j)
            best = max(best, (total + j + (found - before) * first) / (found + j))
            worst = min(worst, (total + j + (found - before - (m - j)) * last) / (found + j))
        return mean / weights, best, worst


# --- scores -----------------------------------------------------------------------------------------------------------


def tie_groups(scores, relevant) -> list[tuple[int, int]]:
    """Groups of equal scores, the largest first; -inf was not retrieved."""
    rows = [(s, r) for s, r in zip(scores, relevant, strict=True) if s > -math.inf]
    return [
        (sum(s == level for s, _ in rows), sum(r for s, r in rows if s == level))
        for level in sorted({s for s, _ in rows}, reverse=True)
    ]


def of_scores(scores, relevant, known=None, k=None, denominator="relevant", ties="expected", rule="step") -> float:
    """Average precision of one query's items by a tie rule; the items come in the order that "stable" takes."""
    known = sum(relevant) if known is None else known
    if not known:
        return 0.0
    if ties == "stable":
        rows = sorted(zip(scores, relevant, strict=True), key=lambda row: -row[0])
        ranked = [int(r) for s, r in rows if s > -math.inf]
        if rule in ("step", "trapezoid"):
            return float(average_precision(ranked, known, k, denominator, rule == "trapezoid"))
        return interpolated([(1, r) for r in ranked], known, rule, k, denominator)
    groups = tie_groups(scores, relevant)
    if ties == "threshold":
        found = sum(r for _, r in groups)
        in_all = found if denominator == "hits" else known
        if rule == "step":
            return float(threshold(groups, in_all)) if in_all else 0.0
        return interpolated(groups, known, rule, None, denominator)
    table = over_orders(orders(groups), known, [k], rule == "trapezoid")
    return float(table[k, denominator][("expected", "optimistic", "pessimistic").index(ties)])


def bound(groups, known, k, denominator, best: bool) -> float:
    """The best or worst average precision: relevant items first or last, every number of hits where a tie is cut."""
    k = cut_off(k, known)
    above: list[int] = []
    for n, r in groups:
        m = max(0, min(n, k - len(above)))
        options = []
        for j in range(max(0, m - (n - r)), min(r, m) + 1):
            hits, misses = [1] * j, [0] * (m - j)
            options.append(above + (hits + misses if best else misses + hits))
        if m < n:
            values = [average_precision(ranked, known, k, denominator) for ranked in options]
            return float(max(values) if best else min(values))
        above = options[0]
    return float(average_precision(above, known, k, denominator))
