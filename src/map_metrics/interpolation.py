"""Interpolated precision: the curve made non-increasing from the right, and its value at given recalls."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# numpy.linspace in float64: 3 of 10 found does not reach its 0.3
GRIDS = {
    "11-point": np.linspace(0, 1, 11).tolist(),
    "40-point": np.linspace(0, 1, 41)[1:].tolist(),  # KITTI since 2019: recall 0 is left out
    "101-point": np.linspace(0, 1, 101).tolist(),
}


def envelope(
    query: Tensor, before: Tensor, found: Tensor, total: Tensor, relevant: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One point a tie group, at its end: query, relevant items found, and the largest precision there or beyond.

    The arguments are the columns of :class:`map_metrics.average_precision.Groups`.
    """
    found = found + relevant
    return query, found, _running_maximum_from_the_right(found.double() / (before + total), query)


def precision_at_recall(
    recall: float, query: Tensor, found: Tensor, precision: Tensor, hits: Tensor, divisor: Tensor
) -> Tensor:
    """(Q,) precision at the first point that reaches a recall; 0 where none does.

    Args:
        recall: the level.
        query: (B,) as :func:`envelope` returns it, and so are the next two.
        found: (B,).
        precision: (B,).
        hits: (Q,) int64, relevant items found in all.
        divisor: (Q,) float64, what recall is counted against.
    """
    if not len(precision):
        return torch.zeros_like(divisor)
    first_point = hits.cumsum(0) - hits  # queries one after another on one axis of hits
    needed = _least_count(recall, divisor).clamp(min=1)
    point = torch.searchsorted(first_point[query] + found, first_point + needed).clamp(max=len(precision) - 1)
    return torch.where((needed <= hits) & (divisor > 0), precision[point], 0.0)


def _least_count(recall: float, divisor: Tensor) -> Tensor:
    """The least whole c with c / divisor >= recall in float64, as searching the recalls would find it."""
    count = (recall * divisor).ceil()
    safe = divisor.clamp(min=1)
    count = torch.where(count / safe < recall, count + 1, count)
    return torch.where((count - 1) / safe >= recall, count - 1, count).long()


def _running_maximum_from_the_right(values: Tensor, query: Tensor) -> Tensor:
    """Within each query. The maximum runs over ranks of the values: integers, so queries can be told apart exactly."""
    levels, rank = torch.unique(values, return_inverse=True)
    offset = -query * len(levels)
    return levels[(rank + offset).flip(0).cummax(0).values.flip(0) - offset] if len(values) else values
