"""Interpolated precision and average precision of many curves at once, with or without weights.

The numbers are those of :mod:`map_metrics.detection.summary`, to the bit; only here a row may count several times.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from map_metrics.detection.curves import Floats, Ints, area_under_envelope, largest_beyond, needed_hits, tie_limits
from map_metrics.detection.protocols import Protocol

_BLOCK = 1 << 20  # entries of the largest temporary


def interpolated(true: Ints, total: Ints, bounds: Ints, positives: Ints, protocol: Protocol) -> Floats:
    """The largest precision at or beyond each recall level of a protocol, 0 where a curve does not come.

    Args:
        true: (H,) true positives up to each hit, summed over all curves.
        total: (H,) detections that count up to each hit, in its own curve.
        bounds: (K + 1,) where the hits of each curve start, and the end.
        positives: (K,) ground truths of each curve.
        protocol: the recall levels.

    Returns:
        (K, R) float64; without levels (K, 1), the area under the envelope over recall.
    """
    cumulated = np.concatenate([[0], true])
    before, after = cumulated[bounds[:-1]], cumulated[bounds[1:]]
    precision = (true - np.repeat(before, np.diff(bounds))) / (np.maximum(total, 1) + protocol.epsilon)
    if not protocol.recall_thresholds:
        return area_under_envelope(precision, bounds, np.diff(cumulated), positives)[:, None]
    levels = np.array(protocol.recall_thresholds)
    by_level = np.argsort(levels, kind="stable")
    needed = before[:, None] + needed_hits(positives, levels[by_level])
    reached = needed <= after[:, None]
    place = np.where(reached, np.searchsorted(true, needed), bounds[1:, None])
    # the maximum between one level and the next, then over the levels above; see ``curves._sample``
    stretches = np.concatenate([bounds[:-1, None], place], axis=1)
    best = np.maximum.reduceat(np.append(precision, 0.0), stretches.ravel()).reshape(stretches.shape)[:, 1:]
    envelope = np.empty_like(best)
    envelope[:, by_level] = np.maximum.accumulate(np.where(reached, best, 0.0)[:, ::-1], axis=1)[:, ::-1]
    return envelope


def average_precision(
    curve: Tensor, score: Tensor, hit: Tensor, counts: Tensor, positives: Tensor, protocol: Protocol
) -> Tensor:
    """Mean interpolated precision of each curve.

    Args:
        curve: (n,) int64, the curve of each detection, ascending; inside a curve the best score comes first.
        score: (n,) float64.
        hit: (n,) bool, true positives.
        counts: (n,) bool, true and false positives.
        positives: (K,) int64, ground truths of each curve.
        protocol: the recall levels, and the order of equal scores.

    Returns:
        (K,) float64, -1 for a curve without ground truth.
    """
    hits = hit.nonzero()[:, 0]
    seen = torch.cat([counts.new_zeros(1, dtype=torch.int64), counts.cumsum(0)])
    limit = tie_limits(curve, score, protocol)[hits]
    own = torch.arange(1, len(hits) + 1) - torch.searchsorted(hits, limit)  # true positives count up to the hit itself
    total = (seen[limit] + own - seen[torch.searchsorted(curve, curve[hits])]).numpy()
    label = curve[hits].numpy()
    bounds = np.searchsorted(label, np.arange(len(positives) + 1))
    rank = np.arange(1, len(label) + 1) - bounds[label]
    precision, number = rank / (total + protocol.epsilon), positives.numpy()
    if protocol.recall_thresholds:
        value = _mean_over_levels(np.append(largest_beyond(precision, label), 0.0), bounds, number, protocol)
    else:
        value = area_under_envelope(precision, bounds, np.ones(len(label)), number)
    return torch.from_numpy(np.where(number > 0, value, -1.0))


def _mean_over_levels(largest: Floats, bounds: Ints, positives: Ints, protocol: Protocol) -> Floats:
    """The mean over the recall levels of each curve's envelope, 0 without hits.

    Args:
        largest: (H + 1,) the envelope at each hit, and one entry of padding.
        bounds: (K + 1,) where the hits of each curve start, and the end.
        positives: (K,) ground truths of each curve.
        protocol: the recall levels.
    """
    levels = np.array(protocol.recall_thresholds)
    numbers, which = np.unique(positives, return_inverse=True)
    needed = needed_hits(numbers, levels)  # once for all curves of as many ground truths
    value, found = np.zeros(len(positives)), np.flatnonzero(np.diff(bounds))
    step = max(1, _BLOCK // len(levels))
    for start in range(0, len(found), step):
        some = found[start : start + step]
        place = bounds[some, None] + needed[which[some]] - 1
        value[some] = largest[np.where(place < bounds[some + 1, None], place, -1)].mean(1)
    return value
