"""From matched rows to tables of precision and recall.

With COCO's grids the tables are bit for bit those of pycocotools 2.0.11 (``COCOeval.accumulate``), but only true
positives are looked at: between two of them precision falls, so no maximum and no sample lies there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from map_metrics.detection.matching import Detections, Matches, Ranking
from map_metrics.detection.protocols import Protocol
from map_metrics.ranking import first_of_runs, take, true_rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Takers(NamedTuple):
    """Matches that matter in one area range under one cap, in curve order.

    Attributes:
        first: (E,) int64, index of the lowest threshold at which the match stands.
        stop: (E,) int64, the first above at which it does not.
        hit: (E,) bool, a true positive; otherwise the ground truth is an ignored one.
        seen: (E,) int64, detections of the class up to here that count as long as none is matched.
        changers: (X,) int64, matches that change that number.
        change: (X,) int64, by how much: 1 or -1.
        num_changers: (E,) int64, how many of these there are up to each match.
        score: (E + 1,) float64, and one entry of padding.
        bounds: (C + 1,) int64, where each class starts, and the end.
        until: (E,) int64, how many matches there are up to where ``seen`` and ``num_changers`` are taken; None: this
            one is the last.
    """

    first: Ints
    stop: Ints
    hit: Bools
    seen: Ints
    changers: Ints
    change: Ints
    num_changers: Ints
    score: Floats
    bounds: Ints
    until: Ints | None


class Curves(NamedTuple):
    """One threshold's true positives, class by class, best score first.

    Attributes:
        precision: (H,) float64, up to and including each.
        hits: (H,) int64, which of the matches they are.
        bounds: (C + 1,) int64, where each class starts, and the end.
        score: (E + 1,) float64, of the matches, and one entry of padding.
    """

    precision: Floats
    hits: Ints
    bounds: Ints
    score: Floats


def sample_tables(
    detections: Detections,
    ranking: Ranking,
    matches: Matches,
    ignored: Tensor,
    outside: Tensor,
    counts: Tensor,
    order: Tensor,
    protocol: Protocol,
) -> tuple[Tensor, Tensor, Tensor]:
    """Fill the tables.

    Args:
        detections: the rows.
        ranking: their order.
        matches: who takes whom, at ascending thresholds.
        ignored: (A, g) bool, ground truths that do not count.
        outside: (A, n) bool, by place in curve order: detections that are no false positives where unmatched.
        counts: (A, C) int64, ground truths that do.
        order: (T,) int64, where each of the ascending thresholds stands in the protocol.
        protocol: the grids.

    Returns:
        precision and scores [T, R, C, A, M], recall [T, C, A, M].
    """
    levels = np.array(protocol.recall_thresholds)
    by_level = np.argsort(levels, kind="stable") if len(levels) else np.zeros(1, dtype=np.int64)
    at_zero = np.flatnonzero(levels <= 0)
    # Areas and caps first in memory: what a summary reads at once lies together.
    shape = (len(counts), len(protocol.cuts), len(order), len(by_level), counts.shape[1])
    precision, scores, recall = np.empty(shape), np.empty(shape), np.empty((*shape[:3], shape[4]))
    best_score = [_best_scores(detections, ranking, cap, protocol, shape[4]) for cap in protocol.cuts]
    score = take(detections.score, take(ranking.row, matches.detection)).numpy()
    limit = None
    if protocol.ties != "stable":
        limit = tie_limits(ranking.label, take(detections.score, ranking.row), protocol).numpy()
    for area, count in enumerate(counts.numpy()):
        needed = needed_hits(count, levels[by_level]) if len(levels) else None
        for m, cap in enumerate(protocol.cuts):
            takers = _takers(
                ranking, matches, score, ~ignored[area].numpy(), outside[area].numpy(), limit, area, cap, shape[4]
            )
            for t, row in enumerate(order.tolist()):
                at = area, m, row
                curves = _curves(takers, t, protocol.epsilon)
                sampled = _area_under(curves, count) if needed is None else _sample(curves, needed)
                precision[at][by_level], scores[at][by_level] = sampled
                recall[at] = np.diff(curves.bounds) / np.maximum(count, 1)
            scores[area, m][:, at_zero] = best_score[m]  # the first detection reaches recall 0, hit or not
            for table in (recall, precision, scores):
                table[area, m][..., count == 0] = -1
    return _axes_last(precision), _axes_last(scores), _axes_last(recall)


def _axes_last(table: Floats) -> Tensor:
    """[A, M, ...] seen as [..., A, M]."""
    return torch.from_numpy(np.moveaxis(table, (0, 1), (-2, -1)))


def tie_limits(curve: Tensor, score: Tensor, protocol: Protocol) -> Tensor:
    """(n,) int64, the place before which false positives stand above a hit.

    Of equally scored detections of a curve, a hit comes first (then it is where they start), or last (where they end),
    or in its own place.

    Args:
        curve: (n,) int64, the curve of each detection, ascending.
        score: (n,) float64, descending in each curve.
        protocol: the order of equal scores.
    """
    places = torch.arange(len(curve))
    if protocol.ties == "stable":
        return places + 1
    starts = true_rows(first_of_runs(curve, score))
    group = torch.searchsorted(starts, places, right=True) - 1
    return torch.cat([starts, torch.tensor([len(curve)])])[group + (protocol.ties == "pessimistic")]


def _best_scores(detections: Detections, ranking: Ranking, cap: int, protocol: Protocol, num_classes: int) -> Floats:
    """(C,) the largest score of each class under a cap, 0 without detections."""
    label, row = ranking.label.numpy(), ranking.row.numpy()
    if protocol.cap_per == "image":  # a cap per class never leaves the best of a class out
        seen = ranking.position.numpy() < cap
        label, row = label[seen], row[seen]
    bounds = np.searchsorted(label, np.arange(num_classes + 1))
    occurs = bounds[:-1] < bounds[1:]
    best = np.zeros(num_classes)
    best[occurs] = detections.score.numpy()[row[bounds[:-1][occurs]]]
    return best


def needed_hits(count: Ints, levels: Floats) -> Ints:
    """The least number of true positives, 1 or more, with number / count >= level in float64: (C, R) int64."""
    total = np.maximum(count, 1)[:, None]
    number = np.ceil(levels * total)  # off by one at most
    number += number / total < levels
    number -= (number - 1) / total >= levels
    return np.maximum(number, 1).astype(np.int64)


class _TrueBefore:
    """How many flags before given places are true: a count for each 64 flags, then the bits of one word.

    A running sum of all flags takes three times as long where few places are asked for.
    """

    def __init__(self, flags: Bools) -> None:
        packed = np.packbits(flags, bitorder="little")
        self.words = np.pad(packed, (0, 8 + -len(packed) % 8)).view("<u8")  # one more: the end is a place too
        self.before = np.append(0, np.cumsum(np.bitwise_count(self.words), dtype=np.int64))

    def __call__(self, places: Ints) -> Ints:
        word, bit = places >> 6, (places & 63).astype(np.uint64)
        below = self.words[word] & ((np.uint64(1) << bit) - np.uint64(1))
        count: Ints = self.before[word] + np.bitwise_count(below)
        return count


def _takers(
    ranking: Ranking,
    matches: Matches,
    score: Floats,
    counts: Bools,
    outside: Bools,
    limit: Ints | None,
    area: int,
    cap: int,
    num_classes: int,
) -> Takers:
    """The matches that matter in one area range under one cap.

    Args:
        ranking: the detections.
        matches: who takes whom.
        score: (E,) float64, of each match.
        counts: (g,) bool, ground truths that count in this area range.
        outside: (n,) bool, detections outside of it: ignored where unmatched.
        limit: (n,) int64, the place before which false positives stand above a hit; None: its own.
        area: index of the range.
        cap: detections of a cell that take part.
        num_classes: C.
    """
    label, position = ranking.label.numpy(), ranking.position.numpy()
    detection, truth, first, stop, again = (column.numpy() for column in matches[:5])
    hit, out = counts[truth] & ~again, outside[detection]
    stands = matches.areas[area].numpy() & (position[detection] < cap)
    rows = np.flatnonzero(stands & (hit | ~out))  # an ignored truth taken from outside the range changes nothing
    hit, out, detection = hit[rows], out[rows], detection[rows]
    change = (hit & out).astype(np.int64) - ~(hit | out)
    seen = _TrueBefore(~outside & (position < cap))
    starts = np.searchsorted(label, np.arange(num_classes + 1))
    bounds = np.searchsorted(detection, starts)
    changers = np.flatnonzero(change)
    seen_at, num_changers, until = seen(detection + 1), np.cumsum(change != 0), None
    if limit is not None:
        until = np.searchsorted(detection, limit[detection])
        seen_at, num_changers = seen(limit[detection]), np.insert(num_changers, 0, 0)[until]
    return Takers(
        first[rows],
        stop[rows],
        hit,
        seen_at - np.repeat(seen(starts[:-1]), np.diff(bounds)),
        changers,
        change[changers],
        num_changers,
        np.append(score[rows], 0.0),
        bounds,
        until,
    )


def _curves(takers: Takers, threshold: int, epsilon: float) -> Curves:
    """The curves of all classes at one threshold, given by its index."""
    stands = (takers.first <= threshold) & (threshold < takers.stop)
    hits = np.flatnonzero(stands & takers.hit)
    bounds = np.searchsorted(hits, takers.bounds)
    start, number = bounds[:-1], np.diff(bounds)
    changed = np.concatenate([[0], np.cumsum(takers.change * stands[takers.changers])])
    changed_before = changed[np.searchsorted(takers.changers, takers.bounds[:-1])]
    total = takers.seen[hits] + changed[takers.num_changers[hits]] - np.repeat(changed_before, number)
    rank = np.arange(1, len(hits) + 1)
    if takers.until is not None:  # true positives count up to the hit itself all the same
        total += rank - np.searchsorted(hits, takers.until[hits])
    precision = (rank - np.repeat(start, number)) / (total + epsilon)
    return Curves(precision, hits, bounds, takers.score)


def _sample(curves: Curves, needed: Ints) -> tuple[Floats, Floats]:
    """Envelope of precision, and score, where each recall level is first reached: (R, C) each, 0 where it is not.

    Args:
        curves: the curves.
        needed: (C, R) int64, how many true positives each recall level takes, ascending along R.
    """
    start, number = curves.bounds[:-1, None], np.diff(curves.bounds)[:, None]
    reached = needed <= number
    place = start + np.minimum(needed - 1, number)
    # The maximum between one level and the next, then over the levels above. The start of each curve is a bound too:
    # without it the last stretch would run into the next curve. Where two bounds coincide, reduceat returns what
    # stands there, which belongs to the next stretch and does no harm.
    bounds = np.concatenate([start, place], axis=1)
    best = np.maximum.reduceat(np.append(curves.precision, 0.0), bounds.ravel()).reshape(bounds.shape)[:, 1:]
    envelope = np.maximum.accumulate(np.where(reached, best, 0.0)[:, ::-1], axis=1)[:, ::-1]
    score = np.where(reached, curves.score[np.append(curves.hits, -1)[place]], 0.0)
    return envelope.T, score.T


def _area_under(curves: Curves, count: Ints) -> tuple[Floats, Floats]:
    """Area under the envelope of precision over recall, and score of the last true positive: (1, C) each.

    Args:
        curves: the curves.
        count: (C,) int64, ground truths.
    """
    number = np.diff(curves.bounds)
    area = area_under_envelope(curves.precision, curves.bounds, np.ones(len(curves.precision)), count)
    last = curves.score[np.append(curves.hits, -1)[np.where(number > 0, curves.bounds[1:] - 1, -1)]]
    return area[None], last[None]


def area_under_envelope(precision: Floats, bounds: Ints, weight: Floats | Ints, count: Ints) -> Floats:
    """Area under the envelope of precision over recall.

    Args:
        precision: (H,) up to and including each true positive, of curves one after the other.
        bounds: (C + 1,) where each curve starts, and the end.
        weight: (H,) how many true positives each stands for.
        count: (C,) ground truths.

    Returns:
        (C,) float64, 0 without true positives.
    """
    number = np.diff(bounds)
    label = np.repeat(np.arange(len(number)), number)
    largest = largest_beyond(precision, label)
    area: Floats = np.bincount(label, largest * weight, minlength=len(number)) / np.maximum(count, 1)
    return area


def largest_beyond(precision: Floats, label: Ints) -> Floats:
    """The largest precision at or beyond each true positive of its curve.

    Args:
        precision: (H,) of curves one after the other.
        label: (H,) the curve of each, ascending.
    """
    levels, rank = np.unique(precision, return_inverse=True)
    # from the end of each curve on: one that comes later stands above by more than any rank
    key = (label.max(initial=0) - label) * len(levels) + rank
    largest: Floats = levels[np.maximum.accumulate(key[::-1])[::-1] % max(len(levels), 1)]
    return largest
