"""Detections as right, wrong or left out at one threshold: the rows of a curve."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from map_metrics.detection.matched import Matched


class Judged(NamedTuple):
    """Detections at one threshold, in one area range, under one cap; and the ground truths that count there.

    Detections stand in curve order: by curve, best score first. A detection that is left out is unmatched outside of
    the area range, or took an ignored ground truth.

    Attributes:
        place: (n,) int64, place in curve order among all detections, ascending.
        curve: (n,) int64, rank of the curve (of the class, or 0 for all classes as one).
        image: (n,) int64, rank of the image.
        score: (n,) float64.
        truth: (n,) int64, the ground truth taken, as a row of the matched truths; -1 for none.
        hit: (n,) bool, true positives.
        counts: (n,) bool, true and false positives; False for those that are left out.
        true: (g,) bool, the matched ground truths that count.
    """

    place: Tensor
    curve: Tensor
    image: Tensor
    score: Tensor
    truth: Tensor
    hit: Tensor
    counts: Tensor
    true: Tensor


def judge(matched: Matched, cap: int, threshold: int = 0, area: int = 0, among: Tensor | None = None) -> Judged:
    """Judge the detections of matched images.

    Args:
        matched: the images.
        cap: how many of the best detections of an (image, curve) count.
        threshold: index among the ascending thresholds.
        area: index of the area range.
        among: (n,) int64, the places under the cap to judge, in the order of the answer; None: all.
    """
    ranking, matches = matched.ranking, matched.matches
    stands = (matches.first <= threshold) & (threshold < matches.stop) & matches.areas[area]
    truth = torch.full_like(ranking.row, -1)
    truth[matches.detection[stands]] = matches.truth[stands]
    again = torch.zeros_like(ranking.row, dtype=torch.bool)
    again[matches.detection[stands]] = matches.again[stands]
    place = (ranking.position < cap).nonzero()[:, 0] if among is None else among
    truth, row, true = truth[place], ranking.row[place], ~matched.ignored[area]
    taken = truth >= 0
    hit = taken & ~again[place] & torch.cat([true, true.new_zeros(1)])[truth]
    return Judged(
        place=place,
        curve=ranking.label[place],
        image=matched.detections.image[row],
        score=matched.detections.score[row],
        truth=truth,
        hit=hit,
        counts=hit | ~(taken | matched.outside[area, place]),
        true=true,
    )
