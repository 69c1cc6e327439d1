"""Interpolated precision and average precision of many curves at once, with or without weights.

The numbers are those of :mod:`map_metrics.detection.summary`, to the bit; only here a row may count several times.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from map_metrics.detection.curves import Floats, Ints, area_under_envelope, needed_hits, tie_limits
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
    curves = (positives > 0).nonzero()[:, 0]  # the others have no hits
    bounds = torch.cat([torch.searchsorted(curve[hits], curves), torch.tensor([len(hits)])]).numpy()
    value = np.full(len(positives), -1.0)
    step = max(1, _BLOCK // max(1, len(protocol.recall_thresholds)))
    for start in range(0, len(curves), step):
        some = curves[start : start + step].numpy()
        edges = bounds[start : start + step + 1]
        rows = slice(edges[0], edges[-1])
        true = np.arange(1, 1 + edges[-1] - edges[0])
        value[some] = interpolated(true, total[rows], edges - edges[0], positives.numpy()[some], protocol).mean(1)
    return torch.from_numpy(value)
