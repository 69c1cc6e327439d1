"""Precision and recall at every detection, and the score at which their balance is best."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from map_metrics.detection.judged import Judged


class Curve(NamedTuple):
    """One point per detection that counts, best score first.

    Attributes:
        precision: (n,) float64, true positives / detections up to here.
        recall: (n,) float64, true positives up to here / ground truths; NaN without ground truth.
        score: (n,) float64, of the detection.
    """

    precision: Tensor
    recall: Tensor
    score: Tensor


class BestF(NamedTuple):
    """The score threshold of the largest F-beta; NaN where there is nothing to find or nothing was detected.

    Attributes:
        score: keep the detections with this score or more.
        precision: of those.
        recall: of those.
        f: their F-beta.
    """

    score: float
    precision: float
    recall: float
    f: float


def precision_recall(judged: Judged, num_truths: int) -> Curve:
    """The curve of all detections together; equal scores stand in curve order."""
    rows = judged.counts.nonzero()[:, 0]
    rows = rows[torch.sort(judged.score[rows], descending=True, stable=True).indices]
    true = judged.hit[rows].cumsum(0).double()
    total = torch.arange(1, len(rows) + 1).double()
    recall = true / num_truths if num_truths else torch.full_like(true, torch.nan)
    return Curve(true / total, recall, judged.score[rows])


def best_f(curve: Curve, beta: float) -> BestF:
    """F = (1 + beta^2) P R / (beta^2 P + R), looked at where the score changes; the highest score among equal F."""
    if not len(curve.score) or bool(curve.recall.isnan().any()):
        return BestF(*(float("nan"),) * 4)
    last = torch.ones(len(curve.score), dtype=torch.bool)
    last[:-1] = curve.score[1:] != curve.score[:-1]
    precision, recall, score = (column[last] for column in curve)
    total = last.nonzero()[:, 0].double() + 1
    true = (precision * total).round()
    num_truths = (true[-1] / recall[-1]).round()
    # from whole numbers, in which equal F have equal bits
    weight = beta * beta
    f = torch.where(true > 0, (1 + weight) * true / (weight * num_truths + total), 0.0)
    best = int((f == f.max()).nonzero()[0, 0])
    return BestF(*(float(column[best]) for column in (score, precision, recall, f)))
